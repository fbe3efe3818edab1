package hold_test

import (
	"net"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// throughProxies leads each of the two connections through a proxy of its own, and those after them to the broker.
// Connect opens the one for consuming first.
func throughProxies(t testing.TB, c *config.Config) (consuming, publishing *toxiproxy.Proxy) {
	t.Helper()
	consuming, _ = broker.Proxy(t)
	publishing, _ = broker.Proxy(t)
	proxies := [2]string{consuming.Listen, publishing.Listen}
	var opened atomic.Int32
	c.AMQP.Connection.AmqpConfig = &amqp091.Config{
		Heartbeat: time.Minute,
		Dial: func(network, address string) (net.Conn, error) {
			if n := opened.Add(1); n <= 2 {
				address = proxies[n-1]
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		},
	}
	return consuming, publishing
}

// TestALostConnectionDoesNotStopTheHandler: copies wait for their confirms when a connection is lost, and it is back at
// once. No message is held for the minute of a silent tier, and none whose delivery is lost.
func TestALostConnectionDoesNotStopTheHandler(t *testing.T) {
	t.Parallel()
	const messages, concurrency, inFlight = 40, 4, 8
	for name, row := range map[string]struct{ consuming, publishing bool }{
		"both": {true, true}, "publishing": {false, true}, "consuming": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testapp.Config(t, testapp.Schedule(short))
			c.Policy.PublishTimeout = 5 * time.Minute // no copy is given up before the connection is lost
			consuming, publishing := throughProxies(t, &c)
			a := &app{t: t, queue: "orders_" + c.Prefix}
			a.App = testapp.Connect(t, c)
			var calls atomic.Int64
			processed := testapp.NewLedger()
			a.AddConsumerHandler(a.Router, "billing", a.queue, func(msg *message.Message) error {
				if _, retried := retry.ReadRecord(msg.Metadata); !retried {
					calls.Add(1)
					return errDown
				}
				processed.Add(msg.UUID)
				return nil
			}, retry.Options{Concurrency: concurrency, Prefetch: inFlight})
			a.Run()
			confirm := keepConfirms(t, publishing)
			t.Cleanup(confirm)
			a.send(messages)
			testapp.Eventually(t, func() bool {
				all := testapp.Depth(t, a.queue) + testapp.Depth(t, a.TierQueue(a.queue, short))
				return calls.Load() == inFlight && all == messages
			}, "the broker has the copies, and no confirm comes")

			if row.publishing {
				publishing.Stop()
			}
			if row.consuming {
				consuming.Stop()
			}
			if row.consuming {
				testapp.Eventually(t, func() bool { return calls.Load() > inFlight }, "the places are free")
			}
			if !row.publishing {
				confirm()
			}
			processed.Wait(t, messages, soon)
			a.done()
			assert.LessOrEqual(t, len(processed.Twice()), 2*inFlight, "what was in flight")
			s := a.Health().Subscriptions[0]
			assert.Empty(t, s.Paused)
			assert.Zero(t, s.Holding)
			for _, line := range a.Log.Lines("holding the message") {
				next := regexp.MustCompile(`next_try_in:(\S+?)[ \]]`).FindStringSubmatch(line)
				require.NotNil(t, next, line)
				pause, err := time.ParseDuration(next[1])
				require.NoError(t, err)
				assert.LessOrEqual(t, pause, 5*time.Second, line)
			}
			if row.consuming {
				assert.NotEmpty(t, a.Events(retry.GivenBack), "what has lost its delivery")
			}
		})
	}
}
