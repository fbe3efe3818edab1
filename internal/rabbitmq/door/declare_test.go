package door

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

type fakeBroker struct {
	number  uint64
	open    func() (*amqp091.Channel, error)
	version string
}

var errNoChannel = errors.New("no more channels")

func (b fakeBroker) Number() uint64                         { return b.number }
func (b fakeBroker) OpenChannel() (*amqp091.Channel, error) { return b.open() }
func (b fakeBroker) Version() string                        { return b.version }

// Handlers of one queue that begin to consume together share a look at its bindings. One that was paused looks again, at
// most once for all that have begun to consume since.
func TestHandlersOfOneQueueShareALook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDeclarer(&core{}, nil, nil, watermill.NopLogger{})
		defer d.close()
		looks := 0
		broker := fakeBroker{number: 1, open: func() (*amqp091.Channel, error) { looks++; return nil, errNoChannel }}
		bind := func(lostAt time.Time) int {
			looks = 0
			for range 3 {
				_ = d.bind(&subscriber.Declaration{Reopening: wire.Reopening{On: broker}, Broker: broker, LostAt: lostAt},
					app.Subscription{Queue: "orders"})
			}
			return looks
		}
		assert.Equal(t, 1, bind(time.Time{}))
		time.Sleep(time.Second)
		assert.Zero(t, bind(time.Time{}))
		paused := time.Now()
		time.Sleep(time.Second)
		assert.Equal(t, 1, bind(paused))
		time.Sleep(bindAgain)
		assert.Equal(t, 1, bind(time.Time{}))
	})
}

// TestHandlersOfOneQueueShareAnError: those of other queues do not wait.
func TestHandlersOfOneQueueShareAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeclarer(&core{
			inspector: workqueue.New(workqueue.Config{}), prefix: naming.Default, verifyOnly: true,
			topology: topology.Config{Tiers: backoff.Schedule{time.Second}.Tiers()}, app: app.Config{Queue: app.Queue{Durable: true}},
		}, nil, nil, watermill.NopLogger{})
		defer d.close()
		release, opened := make(chan struct{}), 0
		declare := func(queue string, connection uint64, open func() (*amqp091.Channel, error)) error {
			broker := fakeBroker{connection, open, ""}
			return d.declare(
				&subscriber.Declaration{Reopening: wire.Reopening{On: broker}, Broker: broker},
				app.Subscription{Topic: "topic", Queue: queue, Logger: watermill.NopLogger{}},
			)
		}
		const handlers = 16
		results := make(chan error, handlers)
		for range handlers {
			go func() {
				results <- declare("orders", 2, func() (*amqp091.Channel, error) {
					opened++
					<-release
					return nil, errNoChannel
				})
			}()
		}
		synctest.Wait()
		require.Equal(t, 1, opened, "the others wait")
		other := errors.New("another error")
		require.ErrorIs(t, declare("mails", 2, func() (*amqp091.Channel, error) { return nil, other }), other)
		close(release)
		for range handlers {
			require.ErrorIs(t, <-results, errNoChannel)
		}
		assert.Equal(t, 1, opened, "they share the result")

		require.ErrorIs(t, declare("orders", 2, func() (*amqp091.Channel, error) { return nil, other }), other, "a failure is not remembered")
		require.ErrorContains(t, declare("orders", 1, nil), "its connection is lost")
	})
}
