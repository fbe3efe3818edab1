package publisher

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestADeclarationThatFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("cannot declare")
	for name, row := range map[string]struct {
		declare func() error
		cause   string
	}{
		"error": {func() error { return broken }, "cannot declare"},
		"panic": {func() error { panic("oops") }, "declare panicked: oops"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := serveConfirms(t)
			c := b.open(8)
			go func() {
				for channel := range b.closes {
					b.closeOK(channel)
				}
			}()
			t.Cleanup(func() { close(b.closes) })
			d := c.NewDeclarations("declare")
			calls := 0
			once := func(channel *amqp091.Channel, exchange string) error {
				assert.Equal(t, "events", exchange)
				assert.False(t, channel.IsClosed())
				if calls++; calls == 1 {
					return row.declare()
				}
				return nil
			}
			m := timed(t, "message", time.Minute)
			require.NoError(t, d.Exchange(&m, nil), "the default exchange always exists")
			m.Exchange = "events"
			err := d.Exchange(&m, once)
			require.ErrorIs(t, err, publish.ErrNotDeclared)
			require.ErrorContains(t, err, row.cause)
			for range 2 {
				require.NoError(t, d.Exchange(&m, once))
			}
			assert.Equal(t, 2, calls, "once without an error")

			unroutable := m.Failure(publish.ErrUnroutable, &amqp091.Error{Code: amqp091.NotFound, Reason: "NOT_FOUND"})
			assert.True(t, NoExchange(unroutable))
			err = d.ExchangeAgain(&m, unroutable, func(*amqp091.Channel, string) error { return row.declare() })
			require.ErrorIs(t, err, publish.ErrUnroutable)
			require.ErrorContains(t, err, "NOT_FOUND")
			require.ErrorContains(t, err, row.cause)
			require.NoError(t, d.Exchange(&m, once))
			assert.Equal(t, 3, calls, "after a failure it is declared again")

			d.calls[destination{exchange: "events"}].on = new(wire.Connection) // the connection before this one
			var publishers sync.WaitGroup
			for range 20 {
				publishers.Go(func() { assert.NoError(t, d.Exchange(&m, once)) })
			}
			publishers.Wait()
			assert.Equal(t, 4, calls, "once on each connection, whoever publishes")

			require.NoError(t, d.Again(&m, unroutable, func(*amqp091.Channel) error { return nil }))
			err = d.Again(&m, unroutable, func(*amqp091.Channel) error { return row.declare() })
			require.ErrorIs(t, err, publish.ErrUnroutable)
			require.ErrorContains(t, err, row.cause)
		})
	}
}

func TestADeclarationThatHangsIsJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := &declaration{done: make(chan struct{})}
		d := &Declarations{name: "declare", calls: map[destination]*declaration{{exchange: "events"}: hangs}}
		m := Message{Context: t.Context(), Exchange: "events"}
		begin := time.Now()
		err := d.ExchangeAgain(&m, nil, nil)
		require.ErrorIs(t, err, publish.ErrUnroutable)
		require.ErrorContains(t, err, "did not return in time, within 10s")
		assert.Equal(t, declareTimeout, time.Since(begin))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, d.await(ctx, hangs), context.Canceled)
	})
}
