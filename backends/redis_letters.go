package backends

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// redisLetters reads the streams of dead-letter topics. A position is the ID of an entry.
type redisLetters struct {
	client redis.UniversalClient
	lease  time.Duration
}

// isMissing reports whether a stream does not exist.
func isMissing(err error) bool { return err != nil && strings.Contains(err.Error(), "no such key") }

func (r redisLetters) End(ctx context.Context, topic string) (relayletters.End, error) {
	stream, err := r.client.XInfoStream(ctx, topic).Result()
	if isMissing(err) {
		return relayletters.End{}, errNoQueue(topic)
	}
	if err != nil {
		return relayletters.End{}, err
	}
	return relayletters.End{Position: stream.LastGeneratedID, Count: int(stream.Length)}, nil
}

func (r redisLetters) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
	from, to := "-", "+"
	if after != "" {
		from = "(" + after
	}
	if until != "" {
		to = until
	}
	entries, err := r.client.XRangeN(ctx, topic, from, to, int64(limit)).Result()
	if err != nil {
		return nil, err
	}
	var found []relayletters.Stored
	for _, entry := range entries {
		msg, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(entry.Values)
		if err != nil {
			return nil, errUnreadable(topic, entry.ID, err)
		}
		found = append(found, stored(entry.ID, msg))
	}
	return found, nil
}

func (r redisLetters) Remove(ctx context.Context, topic, position string) error {
	return r.client.XDel(ctx, topic, position).Err()
}

// HasHandler looks for a consumer group: the first subscription makes it.
func (r redisLetters) HasHandler(ctx context.Context, topic string) (bool, error) {
	groups, err := r.client.XInfoGroups(ctx, topic).Result()
	if isMissing(err) {
		return false, nil
	}
	return len(groups) > 0, err
}

// A lock is a key with a token. Only the owner of the token renews or removes it.
var (
	renewLock = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then ` +
		`return redis.call("pexpire", KEYS[1], ARGV[2]) else return 0 end`)
	removeLock = redis.NewScript(
		`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`)
)

func (r redisLetters) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	key, token := "watermill-retry.lock:"+topic, rand.Text()
	locked, err := r.client.SetNX(ctx, key, token, r.lease).Result()
	if err != nil {
		return nil, nil, err
	}
	if !locked {
		return nil, nil, errBusy(topic)
	}
	held, release := hold(ctx, r.lease, func(ctx context.Context) error {
		renewed, err := renewLock.Run(ctx, r.client, []string{key}, token, r.lease.Milliseconds()).Int()
		if err == nil && renewed == 0 {
			err = errors.New("another process has it")
		}
		return err
	}, func(ctx context.Context) error { return removeLock.Run(ctx, r.client, []string{key}, token).Err() })
	return held, release, nil
}

func (r redisLetters) Close() error { return r.client.Close() }
