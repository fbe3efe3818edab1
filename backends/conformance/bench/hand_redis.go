package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

var redisBackend = backend{
	name: "redis",
	open: func(address, topic string) (app, error) {
		return &redisApp{address: address, topic: topic, client: redisClient(address)}, nil
	},
}

func redisClient(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, PoolSize: 2 * inFlight})
}

// redisApp keeps what waits in a sorted set. What it has moved stays in the stream of the topic, as all that was
// published there.
type redisApp struct {
	address, topic string
	client         *redis.Client
}

// subscribers: each has one message in flight.
func (a *redisApp) subscribers() (all []message.Subscriber, err error) {
	for range inFlight {
		s, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: redisClient(a.address), ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
		}, logger())
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (a *redisApp) waiting() string { return a.topic + ".waiting" }

// wait: a random part makes each member unique.
func (a *redisApp) wait(msg *message.Message, due time.Time) error {
	fields, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal(a.topic, msg)
	if err != nil {
		return err
	}
	var member []byte
	for _, part := range [][]byte{[]byte(msg.UUID), fields["metadata"].([]byte), msg.Payload} {
		member = append(binary.BigEndian.AppendUint32(member, uint32(len(part))), part...)
	}
	member = append(member, rand.Text()...)
	return a.client.ZAdd(msg.Context(), a.waiting(), redis.Z{Score: float64(due.UnixMilli() + 1), Member: member}).Err()
}

var redisMove = redis.NewScript(`
local now = redis.call('TIME')
local due = redis.call('ZRANGE', KEYS[1], '-inf', now[1] * 1000 + now[2] / 1000, 'BYSCORE', 'LIMIT', 0, ARGV[1])
for _, member in ipairs(due) do
	local uuid, metadata, payload = struct.unpack('>I4c0I4c0I4c0', member)
	redis.call('XADD', KEYS[2], '*', '` + redisstream.UUIDHeaderKey + `', uuid, 'metadata', metadata, 'payload', payload)
end
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return #due`)

func (a *redisApp) move(ctx context.Context) error {
	return polls(ctx, func(ctx context.Context) (int, error) {
		return redisMove.Run(ctx, a.client, []string{a.waiting(), a.topic}, batch).Int()
	})
}

func (a *redisApp) Close() error { return a.client.Close() }
