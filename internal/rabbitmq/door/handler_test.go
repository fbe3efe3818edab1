package door

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestThePrefetchOfAHandler(t *testing.T) {
	key := func(*message.Message) string { return "" }
	for name, row := range map[string]struct {
		options retry.Options
		app     int
		want    int
	}{
		"default":                      {retry.Options{Concurrency: 16}, 0, 32},
		"one at a time":                {retry.Options{Concurrency: 1}, 0, 1},
		"one at a time, with a key":    {retry.Options{Concurrency: 1, Order: retry.Order{Key: key}}, 0, 1},
		"with a key":                   {retry.Options{Concurrency: 4, Order: retry.Order{Key: key}}, 0, 64},
		"most":                         {retry.Options{Concurrency: 40_000}, 0, 65_535},
		"most, with a key":             {retry.Options{Concurrency: 5_000, Order: retry.Order{Key: key}}, 0, 65_535},
		"the app's is more":            {retry.Options{Concurrency: 16}, 50, 50},
		"the app's is less":            {retry.Options{Concurrency: 16}, 20, 32},
		"the app's, and one at a time": {retry.Options{Concurrency: 1}, 20, 20},
		"own":                          {retry.Options{Concurrency: 16, Prefetch: 16}, 0, 16},
		"own, below the app's":         {retry.Options{Concurrency: 16, Prefetch: 20}, 50, 20},
		"own, with a key":              {retry.Options{Concurrency: 16, Prefetch: 20, Order: retry.Order{Key: key}}, 0, 20},
	} {
		var own app.Config
		own.Consume.PrefetchCount = row.app
		h := &handlerSubscriber{options: row.options, core: &core{app: own}}
		assert.Equal(t, row.want, h.prefetch(), name)
	}
}

// TestDifferentSchedulesOfOneQueueAreNamedAtTheStart: which of the handlers retries a message is chance.
func TestDifferentSchedulesOfOneQueueAreNamedAtTheStart(t *testing.T) {
	log := watermill.NewCaptureLogger()
	name := func(topic string) string { return topic }
	c := &core{app: app.Config{QueueName: name, ExchangeName: func(string) string { return "" }}, prefix: naming.Default, queues: &queues{}}
	add := func(handler, topic string, schedule backoff.Schedule) int {
		h := &handlerSubscriber{name: handler, core: c, logger: log, options: retry.Options{Policy: &retry.Policy{Schedule: schedule}}}
		require.NoError(t, h.add(topic))
		require.NoError(t, h.add(topic), "once more when it subscribes")
		lines := 0
		for _, level := range log.Captured() {
			for _, line := range level {
				if strings.Contains(line.Msg, "Options.Policy.Schedule is not that of another handler") {
					lines++
					assert.Equal(t, watermill.LogFields{
						"queue": "orders", "schedule": "1m", "other_handler": "first", "other_schedule": "1s 5s",
					}, line.Fields)
				}
			}
		}
		return lines
	}
	schedule := backoff.Schedule{time.Second, 5 * time.Second}
	assert.Zero(t, add("first", "orders", schedule))
	assert.Zero(t, add("second", "orders", slices.Clone(schedule)))
	assert.Zero(t, add("other", "invoices", backoff.Schedule{time.Minute}), "another work queue")
	assert.Equal(t, 1, add("third", "orders", backoff.Schedule{time.Minute}))
	assert.Equal(t, 1, add("first", "orders", backoff.Schedule{time.Hour}), "it is added again, with another schedule")
}

func TestPlacesOfCopies(t *testing.T) {
	c := &core{prefix: naming.Default, app: app.Config{QueueName: func(topic string) string { return topic + "_billing" }}}
	tier := backoff.Tier(1500 * time.Millisecond)
	for name, row := range map[string]struct {
		of    backend.Copy
		group string
		want  place
	}{
		"queue of the topic": {backend.Copy{Topic: "orders", Tier: tier}, "", place{
			work: "orders_billing", group: "orders_billing", tier: tier, exchange: "retry", key: "1500ms.orders_billing",
			queue: "orders_billing.retry.1500ms",
		}},
		"queue of the message": {backend.Copy{Topic: "orders", Queue: "orders_mail", Tier: tier}, "", place{
			work: "orders_mail", group: "orders_mail", tier: tier, exchange: "retry", key: "1500ms.orders_mail",
			queue: "orders_mail.retry.1500ms",
		}},
		"tier group": {backend.Copy{Topic: "orders", Tier: tier}, "shop", place{
			work: "orders_billing", group: "shop", tier: tier, exchange: "shop.retry", key: "1500ms.orders_billing",
			queue: "shop.retry.1500ms",
		}},
		"dead letter": {backend.Copy{Topic: "orders"}, "", place{
			work: "orders_billing", group: "orders_billing", exchange: "retry", key: "dead.orders_billing",
			queue: "orders_billing.dead",
		}},
		"dead letter of a tier group": {backend.Copy{Topic: "orders"}, "shop", place{
			work: "orders_billing", group: "shop", exchange: "retry", key: "dead.orders_billing",
			queue: "orders_billing.dead",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, row.want, c.placeOf(row.of, row.group))
		})
	}
}

// What the middleware refuses names the builder's broker and its prefix, without the password.
func TestSourceOfABuilder(t *testing.T) {
	c := &core{prefix: "again", app: app.Config{URI: "amqps://shop:secret@[::1]/a%2Fb"}}
	source := (&Builder{core: c, token: "token"}).source()
	assert.Equal(t, "the builder of amqps://[::1]:5671/a%2Fb (prefix again)", source.Name)
	assert.Contains(t, source.Subscribe, "amqp.NewSubscriber(builder.SubscriberConfig(), logger)")
	require.Equal(t, "token", source.Token)
}

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
	synctest.Test(t, func(t *testing.T) {
		d := newDeclarer(&core{}, nil, nil, watermill.NopLogger{})
		defer d.close()
		looks := 0
		var refused error
		broker := fakeBroker{number: 1, open: func() (*amqp091.Channel, error) { looks++; return nil, refused }}
		bind := func(lostAt time.Time) int {
			looks = 0
			for range 3 {
				err := d.bind(&subscriber.Declaration{Reopening: wire.Reopening{On: broker}, Broker: broker, LostAt: lostAt},
					app.Subscription{Queue: "orders"})
				require.ErrorIs(t, err, refused)
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
		time.Sleep(bindAgain)
		refused = errNoChannel
		assert.Equal(t, 3, bind(time.Time{}), "a failure serves no other handler")
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

// A copy finds its tier also while its work queue is gone, and that queue stays the app's.
func TestATierIsDeclaredAgainWithoutItsWorkQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		connection, err := amqp091.DialConfig("amqp://guest:guest@model:5672/", amqp091.Config{Dial: broker.Dial})
		require.NoError(t, err)
		defer connection.Close()
		channel, err := connection.Channel()
		require.NoError(t, err)
		orders := topology.New(topology.Config{Tiers: []backoff.Tier{backoff.Tier(time.Second)}}, topology.Queue{Name: "orders", Durable: true})
		require.NoError(t, (&core{prefix: "retry"}).redeclare(orders)(channel))
		assert.ElementsMatch(t, []string{"orders.retry.1s", "orders.dead", "retry.orphans"}, broker.Queues())
		assert.Equal(t, 1, broker.Publish("retry", "1s.orders", amqp091.Publishing{}))
	})
}
