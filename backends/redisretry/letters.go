package redisretry

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// reader is the relayletters.Reader of streams. A position is the ID of an entry.
type reader struct{ *server }

func (r reader) End(ctx context.Context, topic string) (relayletters.End, error) {
	stream, err := r.client.XInfoStream(ctx, topic).Result()
	if isMissing(err) {
		return relayletters.End{}, fmt.Errorf("topic %q: %w", topic, letters.ErrNoQueue)
	}
	if err != nil {
		return relayletters.End{}, err
	}
	return relayletters.End{Position: stream.LastGeneratedID, Count: int(stream.Length)}, nil
}

// Read returns an entry that cannot be read as a message of which all fields but the payload are metadata.
func (r reader) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
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
	found := make([]relayletters.Stored, len(entries))
	for i, entry := range entries {
		msg, err := messageOf(entry.Values)
		if err != nil {
			msg = foreignEntry(topic, entry.ID, entry.Values, err)
		}
		found[i] = relayletters.Stored{Position: entry.ID, Message: msg}
	}
	return found, nil
}

func (r reader) Remove(ctx context.Context, topic, position string) error {
	return r.client.XDel(ctx, topic, position).Err()
}

func (r reader) HasHandler(ctx context.Context, topic string) (bool, error) {
	if r.names.IsReturn(topic) {
		return r.client.SIsMember(ctx, r.subscribed(topic), topic).Result()
	}
	groups, err := r.client.XInfoGroups(ctx, topic).Result()
	if isMissing(err) {
		return false, nil
	}
	return len(groups) > 0, err
}

func (r reader) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	l := lock{r.server, r.prefix() + ".lock:" + topic, rand.Text()}
	busy := fmt.Errorf("topic %q: %w: wait until that redrive or discard has ended; the lock of one that was killed ends "+
		"%v later", topic, letters.ErrBusy, r.lease)
	if err := l.run(ctx, lockScript, busy); err != nil {
		return nil, nil, err
	}
	held, release := inflight.Hold(ctx, r.lease, l)
	return held, release, nil
}

// lock is a key with a token. Only the owner of the token renews or removes it.
type lock struct {
	*server
	key, token string
}

func (l lock) run(ctx context.Context, script *redis.Script, refused error) error {
	done, err := script.Run(ctx, l.client, []string{l.key}, l.token, l.lease.Milliseconds()).Int()
	if err == nil && done == 0 {
		err = refused
	}
	return err
}

// Renew implements inflight.Lock.
func (l lock) Renew(ctx context.Context) error { return l.run(ctx, renewLockScript, inflight.ErrTaken) }

// Release implements inflight.Lock.
func (l lock) Release(ctx context.Context) error { return l.run(ctx, unlockScript, nil) }

func (r reader) Close() error { return nil }
