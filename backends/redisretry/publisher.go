package redisretry

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/msgbytes"
)

// publisher publishes to streams, and to return topics where a message waits for the delay in its metadata. It returns
// nil after the server has stored all messages.
type publisher struct{ *server }

// Publish implements message.Publisher. Where it fails, some of the messages may have been published.
func (p publisher) Publish(topic string, messages ...*message.Message) error {
	if p.ctx.Err() != nil {
		return errClosed
	}
	if len(messages) == 0 {
		return nil
	}
	ctx := messages[0].Context()
	if p.names.IsReturn(topic) {
		return p.put(ctx, topic, messages)
	}
	return p.add(ctx, topic, messages)
}

// add adds the entries of messages to a stream, in their order.
func (p publisher) add(ctx context.Context, stream string, messages []*message.Message) error {
	entries := make([]*redis.XAddArgs, len(messages))
	for i, msg := range messages {
		fields, err := fieldsOf(msg)
		if err != nil {
			return fmt.Errorf("message %q: %w", msg.UUID, err)
		}
		entries[i] = &redis.XAddArgs{Stream: stream, Values: fields}
	}
	var err error
	if len(entries) == 1 {
		err = p.client.XAdd(ctx, entries[0]).Err()
	} else {
		_, err = p.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, entry := range entries {
				pipe.XAdd(ctx, entry)
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("cannot add to stream %q: %w", stream, err)
	}
	return nil
}

// put stores messages on a return topic. A client that sends them twice stores them once: their IDs are random, because
// several messages may have one UUID.
func (p publisher) put(ctx context.Context, topic string, messages []*message.Message) error {
	args := make([]any, 1, 1+3*len(messages))
	args[0] = topic
	shortest := delayOf(messages[0])
	for _, msg := range messages {
		wait := delayOf(msg)
		shortest = min(shortest, wait)
		args = append(args, newID(), int64((wait+time.Microsecond-1)/time.Microsecond), msgbytes.Encode(msg))
	}
	if err := putScript.Run(ctx, p.client, p.keys(topic), args...).Err(); err != nil {
		return fmt.Errorf("cannot store on the return topic %q: %w", topic, err)
	}
	p.watchOf(topic).Expect(topic, shortest+time.Millisecond) // the server has answered, so it is due then
	return nil
}

// newID returns an ID of 12 random bytes: 96 bits are enough, and the server keeps it three times.
func newID() string {
	var id [12]byte
	_, _ = rand.Read(id[:]) // it never fails
	return string(id[:])
}

// delayOf returns how long a message waits. Without a delay it is due at once.
func delayOf(msg *message.Message) time.Duration {
	d, err := time.ParseDuration(msg.Metadata[delay.DelayedForKey])
	if err != nil || d < 0 {
		return 0
	}
	return d
}

// Close implements message.Publisher. The client is the app's.
func (publisher) Close() error { return nil }

// String returns its name, for logs.
func (publisher) String() string { return "redisretry.Publisher" }

// lastPublisher is what the connection closes last.
type lastPublisher struct{ publisher }

// Close implements message.Publisher.
func (p lastPublisher) Close() error {
	p.server.close()
	return nil
}
