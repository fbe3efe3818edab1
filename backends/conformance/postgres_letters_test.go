package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
)

const deadOrders = "retry.dead.billing.orders"

func browse(t *testing.T, store letters.Store, topic string) (all []*letters.Letter) {
	t.Helper()
	for letter, err := range store.Browse(t.Context(), topic, letters.Filter{}) {
		if !assert.NoError(t, err) {
			return nil
		}
		all = append(all, letter)
	}
	return all
}

func (p onPostgres) store(config postgresretry.Config) letters.Store {
	p.t.Helper()
	store, err := postgresretry.Letters(config, nil)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, store.Close()) })
	return store
}

// Letters are read in the order in which they were written, each once, in more than one batch.
func TestPostgresLettersInOrder(t *testing.T) {
	p := startPostgres(t)
	retries, err := postgresretry.Connect(p.config(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, retries.Close()) }()
	p.publish(retries, deadOrders, ids(120)...)
	var read []string
	for _, letter := range browse(t, p.store(p.config()), deadOrders) {
		read = append(read, letter.ID)
	}
	assert.Equal(t, ids(120), read)
}

// The letters of a handler come back to it. A second call is refused meanwhile, and a lock that is lost ends the call.
func TestPostgresLetters(t *testing.T) {
	p := startPostgres(t)
	config := p.config()
	store := p.store(config)
	_, err := store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue, "there is no table")
	var got calls
	repaired := make(chan struct{})
	retries, _ := p.app(config, func(msg *message.Message) error {
		got.add(msg)
		select {
		case <-repaired:
			return nil
		default:
			return backoff.Permanent(errors.New("down"))
		}
	})
	_, err = store.Redrive(t.Context(), "retry.dead.billing.mails", letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoQueue, "no handler has subscribed")
	summary, err := store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.NoError(t, err, "it is empty: %v", summary)
	p.publish(retries, "orders", ids(20)...)
	p.eventually("20 dead letters", func() bool { return len(browse(t, store, deadOrders)) == 20 })

	locked := func() int {
		return p.count(`SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
			WHERE locktype = 'advisory' AND datname = current_database()`)
	}
	slow := make(chan error, 1)
	go func() {
		_, err := store.Redrive(context.Background(), deadOrders, letters.Redrive{Rate: 0.1})
		slow <- err
	}()
	p.eventually("the first call has the lock", func() bool { return locked() == 1 })
	_, err = store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrBusy)
	p.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_database d ON d.oid = database
		WHERE locktype = 'advisory' AND datname = current_database()`)
	require.ErrorContains(t, <-slow, "the lock of the dead letters is lost")

	close(repaired)
	_, err = store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.NoError(t, err)
	p.eventually("nothing is left", func() bool { return p.count(`SELECT count(*) FROM retry_messages`) == 0 })
	for _, id := range ids(20) {
		assert.GreaterOrEqual(t, len(got.of(id)), 2, id)
	}
	assert.Zero(t, locked())
}
