package redis_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/letters"
)

// Dead letters are browsed, discarded and redriven to their handler. A second redrive at the same time is refused, and
// the loss of the lock ends a redrive.
func TestLetters(t *testing.T) {
	t.Parallel()
	client := start(t)
	ctx := t.Context()
	var seen ledger
	connection := connect(t, client, 0, 50*time.Millisecond)
	repaired := false
	handler := func(msg *message.Message) error {
		seen.call(msg)
		if repaired {
			return nil
		}
		return errDown
	}
	stop := run(t, connection, "bill", handler)
	open := func() letters.Store {
		store, err := redisretry.Letters(redisretry.Config{Client: client, Lease: 5 * time.Second}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, store.Close()) })
		return store
	}
	first, second := open(), open()
	for _, err := range first.Browse(ctx, deadTopic, letters.Filter{}) {
		require.ErrorIs(t, err, letters.ErrNoQueue)
	}
	publish(t, connection.Publisher(), ids(20)...)
	eventually(t, func() bool { n, err := client.XLen(ctx, deadTopic).Result(); return err == nil && n == 20 }, "dead")
	stop()
	repaired = true

	summary, err := first.Discard(ctx, deadTopic, letters.Discard{Filter: letters.Filter{}, Limit: 2})
	require.NoError(t, err)
	assert.Equal(t, 2, summary.Done)

	slow := make(chan error, 1)
	go func() {
		_, err := first.Redrive(ctx, deadTopic, letters.Redrive{Rate: 0.5})
		slow <- err
	}()
	eventually(t, func() bool { return client.Exists(ctx, "retry.lock:"+deadTopic).Val() == 1 }, "the lock")
	ends := client.PTTL(ctx, "retry.lock:"+deadTopic).Val()
	eventually(t, func() bool {
		before := ends
		ends = client.PTTL(ctx, "retry.lock:"+deadTopic).Val()
		return ends > before
	}, "it is renewed")
	_, err = second.Redrive(ctx, deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrBusy)
	require.NoError(t, client.Del(ctx, "retry.lock:"+deadTopic).Err())
	require.ErrorContains(t, <-slow, "is lost")

	run(t, connect(t, client, 0, 50*time.Millisecond), "a new name", handler)
	_, err = second.Redrive(ctx, deadTopic, letters.Redrive{})
	require.NoError(t, err)
	eventually(t, func() bool { return seen.missing(3, ids(20)...) == 2 }, "redriven, but the two that were discarded")
	eventually(t, func() bool { return len(left(t, client)) == 0 }, "nothing is left")
	assert.Zero(t, client.XLen(ctx, deadTopic).Val())
}

// A letter of a handler that is nowhere stays.
func TestALetterWithoutAHandler(t *testing.T) {
	t.Parallel()
	client := start(t)
	connection := connect(t, client, 0, 50*time.Millisecond)
	run(t, connection, "bill", func(*message.Message) error { return errDown })
	publish(t, connection.Publisher(), "1")
	eventually(t, func() bool { return client.XLen(context.Background(), deadTopic).Val() == 1 }, "dead")
	require.NoError(t, client.Del(t.Context(), subscribedKey(t, client)).Err())
	store, err := redisretry.Letters(redisretry.Config{Client: client}, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, store.Close()) }()
	_, err = store.Redrive(t.Context(), deadTopic, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	assert.EqualValues(t, 1, client.XLen(t.Context(), deadTopic).Val())
}
