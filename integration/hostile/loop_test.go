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

// TestNoHotLoop: the subscriber's connection works in all rows, and the failure publisher has a connection and a user of
// its own. While copies cannot be published, or messages cannot be read, no message is delivered more than five times per
// second and handler. Afterwards every message is dead-lettered.
func TestNoHotLoop(t *testing.T) {
	t.Parallel()
	const handlers, messages, perSecond = 4, 8, 5
	const watched = 4 * time.Second
	for name, row := range map[string]struct{ unreadable, forbidden bool }{
		"publisher down":                          {},
		"unmarshal failure and publisher down":    {unreadable: true},
		"exchange deleted, declare not permitted": {forbidden: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy, _ := broker.Proxy(t)
			user := broker.User(t, ".*", ".*", ".*")
			permit := func(configure string) { // a channel caches its permissions, a new connection does not
				_, err := broker.Management(t).UpdatePermissionsIn("/", user, rabbithole.Permissions{Configure: configure,
					Write: ".*", Read: ".*"})
				require.NoError(t, err)
				proxy.Stop()
				require.NoError(t, proxy.Start())
			}
			c := counting{deliveries: testapp.NewLedger(), publishes: &atomic.Int64{}, unreadable: &atomic.Bool{}}
			app := testapp.NewParts(t, func(b *config.Config) {
				b.AMQP = amqp.NewDurableQueueConfig(fmt.Sprintf("amqp://%s:%s@%s/", user, user, proxy.Listen))
				b.AMQP.Marshaler = c
			})
			// The subscriber is connected without the proxy.
			direct := app.Builder.SubscriberConfig()
			direct.Connection.AmqpURI = broker.URL(t)
			subscriber, err := amqp.NewSubscriber(direct, app.Log)
			require.NoError(t, err)

			queue := app.Queue("orders")
			for i := range handlers {
				app.Router.AddConsumerHandler(fmt.Sprint(i), queue, subscriber, func(*message.Message) error {
					return errDown
				}).AddMiddleware(app.Retry.Middleware)
			}
			app.Run()
			if row.forbidden {
				require.NoError(t, broker.Channel(t).ExchangeDelete(app.Name, false, false))
				permit("^$")
			} else {
				proxy.Stop()
			}
			c.unreadable.Store(row.unreadable)
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
			nacks, tries := app.Log.Count("sending nack"), int(c.publishes.Load())
			bound := int(perSecond * watched.Seconds())
			assert.Less(t, total+nacks, bound*handlers, "deliveries and nacks")
			assert.Less(t, most, bound, "deliveries of one message")
			assert.Less(t, tries, 2*bound*handlers, "attempts to publish")
			t.Logf("in %v: deliveries=%d of one message=%d nacks=%d attempts to publish=%d", watched, total, most, nacks, tries)
			require.Zero(t, testapp.Depth(t, queue+".dead"), "the fault had an effect until now")

			if row.forbidden {
				permit(".*")
			} else {
				require.NoError(t, proxy.Start())
			}
			got := letters(t, queue, messages)
			assert.Equal(t, identities, keys(got))
			empty(t, queue)
		})
	}
}
