package hostile_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// counting is an app's marshaler that counts deliveries by identity, and attempts to publish.
type counting struct {
	amqp.DefaultMarshaler
	deliveries *testapp.Ledger
	publishes  *atomic.Int64
	unreadable *atomic.Bool
}

func (c counting) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	c.deliveries.Add(string(d.Body))
	if c.unreadable.Load() {
		return nil, errDown
	}
	return c.DefaultMarshaler.Unmarshal(d)
}

func (c counting) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	c.publishes.Add(1)
	return c.DefaultMarshaler.Marshal(msg)
}

// fault breaks an app whose failure publisher has a connection and a user of its own.
type fault struct {
	unreadable bool
	begin      func(t *testing.T, f *failures)
	repair     func(t *testing.T, f *failures)
}

type failures struct {
	app  *testapp.Parts
	user string
	cut  func()
	join func()
}

func (f *failures) permit(t *testing.T, configure, write, read string) {
	_, err := broker.Management(t).UpdatePermissionsIn("/", f.user, rabbithole.Permissions{Configure: configure, Write: write, Read: read})
	require.NoError(t, err)
}

// faults: the subscriber's connection works in all of them, so that a nacked message would be redelivered at once.
var faults = map[string]fault{
	"publisher down": {
		begin:  func(_ *testing.T, f *failures) { f.cut() },
		repair: func(_ *testing.T, f *failures) { f.join() },
	},
	"unmarshal failure and publisher down": {
		unreadable: true,
		begin:      func(_ *testing.T, f *failures) { f.cut() },
		repair:     func(_ *testing.T, f *failures) { f.join() },
	},
	"exchange deleted, declare not permitted": {
		begin: func(t *testing.T, f *failures) {
			f.permit(t, "^$", ".*", ".*") // a channel caches its permissions, a new connection does not
			require.NoError(t, broker.Channel(t).ExchangeDelete(f.app.Name, false, false))
			f.cut()
			f.join()
		},
		repair: func(t *testing.T, f *failures) { f.permit(t, ".*", ".*", ".*"); f.cut(); f.join() },
	},
}

// TestNoHotLoop: while copies cannot be published, or messages cannot be read, no message is delivered more than five times per
// second and handler. Afterwards every message is dead-lettered.
func TestNoHotLoop(t *testing.T) {
	t.Parallel()
	const handlers, messages, perSecond = 4, 8, 5
	const watched = 4 * time.Second
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, _ := broker.Proxy(t)
			f := &failures{user: broker.User(t, ".*", ".*", ".*")}
			f.cut = func() { proxy.Stop() }
			f.join = func() { require.NoError(t, proxy.Start()) }
			c := counting{deliveries: testapp.NewLedger(), publishes: &atomic.Int64{}, unreadable: &atomic.Bool{}}
			f.app = testapp.NewParts(t, func(b *config.Config) {
				b.AMQP = amqp.NewDurableQueueConfig(fmt.Sprintf("amqp://%s:%s@%s/", f.user, f.user, proxy.Listen))
				b.AMQP.Marshaler = c
			})
			// The subscriber is connected without the proxy.
			direct := f.app.Builder.SubscriberConfig()
			direct.Connection.AmqpURI = broker.URL(t)
			subscriber, err := amqp.NewSubscriber(direct, f.app.Log)
			require.NoError(t, err)

			queue := f.app.Queue("orders")
			for i := range handlers {
				f.app.Router.AddConsumerHandler(fmt.Sprint(i), queue, subscriber, func(*message.Message) error {
					return errDown
				}).AddMiddleware(f.app.Retry.Middleware)
			}
			f.app.Run()
			fault.begin(t, f)
			c.unreadable.Store(fault.unreadable)
			var identities []string
			for i := range messages {
				identities = append(identities, testapp.ID(i))
				testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(testapp.ID(i))})
			}
			<-time.After(watched) // the time in which deliveries are counted

			total, most := 0, 0
			for _, count := range c.deliveries.Counts() {
				total, most = total+count, max(most, count)
			}
			nacks, tries := f.app.Log.Count("sending nack"), int(c.publishes.Load())
			bound := int(perSecond * watched.Seconds())
			assert.Less(t, total+nacks, bound*handlers, "deliveries and nacks")
			assert.Less(t, most, bound, "deliveries of one message")
			assert.Less(t, tries, 2*bound*handlers, "attempts to publish")
			t.Logf("in %v: deliveries=%d of one message=%d nacks=%d attempts to publish=%d", watched, total, most, nacks, tries)
			require.Zero(t, testapp.Depth(t, queue+".dead"), "the fault had an effect until now")

			fault.repair(t, f)
			got := letters(t, queue, messages)
			assert.Equal(t, identities, keys(got))
			empty(t, queue)
		})
	}
}
