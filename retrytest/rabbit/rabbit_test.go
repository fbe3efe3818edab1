package rabbit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/retrytest/rabbit"
)

// ended is a test whose end the test under it looks at.
type ended struct {
	testing.TB
	mu       sync.Mutex
	texts    []string
	cleanups []func()
}

func (e *ended) Helper()          {}
func (e *ended) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }
func (e *ended) Log(all ...any)   { e.Errorf("%s", fmt.Sprint(all...)) }
func (e *ended) Errorf(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.texts = append(e.texts, fmt.Sprintf(format, args...))
}
func (e *ended) Fatalf(format string, args ...any) {
	e.Errorf(format, args...)
	runtime.Goexit()
}

// said runs a test to its end, and returns what it has logged.
func said(t *testing.T, test func(t testing.TB)) string {
	e := &ended{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(e)
	}()
	<-done
	for _, f := range slices.Backward(e.cleanups) {
		f()
	}
	return strings.Join(e.texts, "\n")
}

// client opens a client with a channel in confirm mode. It is closed before the broker stops.
func client(t testing.TB, b *rabbit.Broker) *amqp091.Channel {
	own := b.AmqpConfig()
	own.Heartbeat = 10 * time.Second
	link, err := amqp091.DialConfig(rabbit.URI, *own)
	require.NoError(t, err)
	t.Cleanup(func() { _ = link.Close() })
	channel, err := link.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	return channel
}

func declare(t testing.TB, channel *amqp091.Channel, queue string) {
	_, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
}

// confirmed publishes a message to a queue, and reports whether the broker has taken it.
func confirmed(t testing.TB, channel *amqp091.Channel, queue, body string) bool {
	confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{Body: []byte(body)})
	require.NoError(t, err)
	return confirm.Wait()
}

func bodies(b *rabbit.Broker, queue string) (all []string) {
	for _, m := range b.Messages(queue) {
		all = append(all, string(m.Body))
	}
	return all
}

func TestWhatIsNotThereEndsTheTest(t *testing.T) {
	for want, do := range map[string]func(t testing.TB, b *rabbit.Broker){
		`Messages: there is no queue "orders"; queues: ["q"]`:              func(_ testing.TB, b *rabbit.Broker) { b.Messages("orders") },
		`Consumers: there is no queue "orders"`:                            func(_ testing.TB, b *rabbit.Broker) { b.Consumers("orders") },
		`DeleteQueue: there is no queue "orders"`:                          func(_ testing.TB, b *rabbit.Broker) { b.DeleteQueue("orders") },
		`DeleteExchange: there is no exchange "retry" that can`:            func(_ testing.TB, b *rabbit.Broker) { b.DeleteExchange("retry") },
		`Publish: there is no exchange "x"; exchanges: ["" "amq`:           func(_ testing.TB, b *rabbit.Broker) { b.Publish("x", "", amqp091.Publishing{}) },
		`SetPolicy: the pattern "(" is no regular expression`:              func(_ testing.TB, b *rabbit.Broker) { b.SetPolicy("p", "(", nil) },
		`SetPolicy: the model has no key "expires" of a policy; it has ["`: func(_ testing.TB, b *rabbit.Broker) { b.SetPolicy("p", "q", map[string]any{"expires": 1}) },
		`SetPolicy: the value of "max-length" is 1 (string): it`:           func(_ testing.TB, b *rabbit.Broker) { b.SetPolicy("p", "q", map[string]any{"max-length": "1"}) },
		`Slow(-1s, 0s): a time must be 0 or more`:                          func(_ testing.TB, b *rabbit.Broker) { b.Slow(-time.Second, 0) },
		`Cut: connection "" is not open; open are: ""`:                     func(_ testing.TB, b *rabbit.Broker) { b.Cut(rabbit.Connection{}) },
		`Silence: no client is connected`: func(_ testing.TB, b *rabbit.Broker) {
			b.Cut()
			b.Silence()
		},
		`Config.Version is "3.9": it must be empty or one of "3.10", "4.0", "4.3"`: func(t testing.TB, _ *rabbit.Broker) {
			rabbit.NewWithConfig(t, rabbit.Config{Version: "3.9"})
		},
		`Config.ConsumerTimeout is -1s: it must be 0 (30 minutes) or more`: func(t testing.TB, _ *rabbit.Broker) {
			rabbit.NewWithConfig(t, rabbit.Config{ConsumerTimeout: -time.Second})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			assert.Contains(t, said(t, func(fake testing.TB) {
				b := rabbit.New(fake)
				declare(fake, client(fake, b), "q")
				do(fake, b)
			}), "rabbit: "+want)
		})
	}
	assert.PanicsWithValue(t, "rabbit: t is nil: pass the t of the test, in synctest.Test that of its function",
		func() { rabbit.New(nil) })
}

func TestTheEndOfATest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assert.Empty(t, said(t, func(fake testing.TB) { client(fake, rabbit.New(fake)) }), "the client is closed before")
		assert.Equal(t, `rabbit: the test is over, and clients are still connected: "billing": close them before, the router `+
			"first and then the Connection", said(t, func(fake testing.TB) {
			own := rabbit.New(fake).AmqpConfig()
			own.Properties = amqp091.Table{"connection_name": "billing"}
			_, err := amqp091.DialConfig(rabbit.URI, *own)
			require.NoError(t, err)
		}))
	})
}

func TestTheWrongT(t *testing.T) {
	assert.Equal(t, "rabbit: New was called inside of synctest.Test with the t of a test around it: pass that of its function",
		said(t, func(fake testing.TB) {
			synctest.Test(t, func(t *testing.T) { client(t, rabbit.New(fake)) })
		}))
}

// A broker of real time has real connections and timers. One of them in a bubble would stop the time there.
func TestOutsideOfABubble(t *testing.T) {
	t.Parallel()
	text := said(t, func(fake testing.TB) {
		b := rabbit.New(fake)
		channel := client(fake, b)
		declare(t, channel, "q")
		assert.True(t, confirmed(t, channel, "q", "m"))
		assert.Equal(t, []string{"m"}, bodies(b, "q"))
		synctest.Test(t, func(t *testing.T) {
			_, err := amqp091.DialConfig(rabbit.URI, *b.AmqpConfig())
			assert.ErrorContains(t, err, "the Broker was made outside of synctest.Test and is used inside")
		})
	})
	assert.Equal(t, []string{
		"rabbit: outside of synctest.Test real time passes: a retry after a minute takes a minute",
		"rabbit: the Broker was made outside of synctest.Test and is used inside: call rabbit.New inside, with the t of its " +
			"function",
	}, strings.Split(text, "\n"))
}

// Tests with a bubble each run in parallel, and a test may have several brokers.
func TestSeveralBrokers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "b"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				one, other := rabbit.New(t), rabbit.NewWithConfig(t, rabbit.Config{Version: "3.10"})
				for _, b := range []*rabbit.Broker{one, other} {
					declare(t, client(t, b), name)
				}
				assert.Equal(t, 1, one.Publish("", name, amqp091.Publishing{Body: []byte("m")}))
				assert.Len(t, one.Messages(name), 1)
				assert.Empty(t, other.Messages(name))
			})
		})
	}
}

func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rabbit.New(t)
		channel, other := client(t, b), client(t, b)
		declare(t, channel, "q")

		began := time.Now()
		b.Slow(time.Second, 0)
		assert.True(t, confirmed(t, channel, "q", "slow to the broker"))
		b.Slow(0, 2*time.Second)
		assert.True(t, confirmed(t, channel, "q", "slow to the client"))
		assert.Equal(t, 3*time.Second, time.Since(began))
		b.Slow(0, 0)

		cut := channel.NotifyClose(make(chan *amqp091.Error, 1))
		b.Cut(b.Connections()[0])
		assert.Error(t, <-cut)
		assert.Len(t, b.Connections(), 1)
		assert.True(t, confirmed(t, other, "q", "another connection"))

		began = time.Now()
		ended := other.NotifyClose(make(chan *amqp091.Error, 1))
		b.Silence()
		assert.Error(t, <-ended)
		assert.Greater(t, time.Since(began), 10*time.Second, "by the heartbeats")
	})
}

func TestTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rabbit.New(t)
		channel := client(t, b)
		declare(t, channel, "q")
		b.Publish("", "q", amqp091.Publishing{Body: []byte("kept")})

		b.Block()
		began := time.Now()
		time.AfterFunc(time.Minute, b.Unblock)
		assert.True(t, confirmed(t, channel, "q", "blocked"))
		assert.Equal(t, time.Minute, time.Since(began))

		b.Stop()
		assert.Empty(t, b.Connections())
		_, err := amqp091.DialConfig(rabbit.URI, *b.AmqpConfig())
		assert.ErrorContains(t, err, "connection refused")
		b.Start()
		declare(t, client(t, b), "q")
		assert.Equal(t, []string{"kept", "blocked"}, bodies(b, "q"))
		assert.Contains(t, b.Trace(), "the node stops\n")
	})
}

func TestQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rabbit.New(t)
		channel := client(t, b)
		require.NoError(t, channel.ExchangeDeclare("x", "direct", true, false, false, false, nil))
		declare(t, channel, "q.1")
		declare(t, channel, "dead")
		assert.Equal(t, []string{"dead", "q.1"}, b.Queues())

		b.SetPolicy("full", "^q", map[string]any{"max-length": 0, "overflow": "reject-publish"})
		assert.True(t, confirmed(t, channel, "q.1", "a quorum queue tells its publishers after the first message too many"))
		assert.False(t, confirmed(t, channel, "q.1", "refused"))
		purged, err := channel.QueuePurge("q.1", false)
		require.NoError(t, err)
		assert.Equal(t, 1, purged)
		b.DeletePolicy("full")

		b.SetPolicy("ttl", "^q", map[string]any{"message-ttl": 1000, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
		b.Publish("", "q.1", amqp091.Publishing{MessageId: "id", Body: []byte("m"), Headers: amqp091.Table{"h": "v"}})
		waits := b.Messages("q.1")[0]
		assert.Equal(t, time.Now().Add(time.Second), waits.Expires)
		assert.NotContains(t, waits.Headers, "x-death")
		died := time.Now().Add(time.Second)
		time.Sleep(time.Minute)
		deliveries, err := channel.Consume("dead", "", false, false, false, false, nil)
		require.NoError(t, err)
		<-deliveries
		assert.Equal(t, 1, b.Consumers("dead"))
		dead := b.Messages("dead")[0]
		assert.Equal(t, []any{"id", "m", "v", "", "dead", true}, []any{dead.MessageId, string(dead.Body), dead.Headers["h"],
			dead.Exchange, dead.RoutingKey, dead.Unacknowledged})
		death := dead.Headers["x-death"].([]any)[0].(amqp091.Table)
		assert.Equal(t, []any{"q.1", "expired", []any{"q.1"}, int64(1), died},
			[]any{death["queue"], death["reason"], death["routing-keys"], death["count"], death["time"]})

		b.DeleteQueue("dead")
		_, more := <-deliveries
		assert.False(t, more)
		b.DeleteExchange("x")
		assert.Equal(t, []string{"q.1"}, b.Queues())
	})
}

// The client of the library reads the management API over the network: its server is outside of the bubble.
func TestManagement(t *testing.T) {
	var b *rabbit.Broker
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.Management().ServeHTTP(w, r) }))
	defer server.Close()
	synctest.Test(t, func(t *testing.T) {
		b = rabbit.New(t)
		channel := client(t, b)
		declare(t, channel, "orders")
		require.NoError(t, channel.QueueBind("orders", "key", "amq.topic", false, nil))
		require.True(t, confirmed(t, channel, "orders", "m"))
		b.SetPolicy("limits", "^orders$", map[string]any{"max-length": 5})
		api, err := management.New(server.URL, management.Broker{Vhost: "/"})
		require.NoError(t, err)

		began := time.Now()
		about, err := api.About(t.Context())
		require.NoError(t, err)
		assert.Equal(t, management.About{Version: "4.3.6", Erlang: "27", User: "guest", Tags: []string{"administrator"},
			Permissions: &management.Permissions{Configure: ".*", Write: ".*", Read: ".*"}}, about)
		all, err := api.Inventory(t.Context())
		require.NoError(t, err)
		assert.Equal(t, map[string]management.Queue{"orders": {Name: "orders", Type: "quorum", State: "running", Durable: true,
			Arguments: management.Arguments{"x-queue-type": "quorum"}, Policy: "limits",
			Effective: management.Arguments{"max-length": int64(5)}, Messages: 1, Stated: true, Ready: 1, Published: 1,
			Counted: true}}, all.Queues)
		assert.Equal(t, "topic", all.Exchanges["amq.topic"].Type)
		assert.Equal(t, map[management.Binding]bool{{Exchange: "amq.topic", Queue: "orders", Key: "key"}: true}, all.Bindings)
		queues, err := api.Queues(t.Context(), management.Flows)
		require.NoError(t, err)
		assert.Equal(t, all.Queues, queues, "the model returns all columns")
		limits, err := api.Limits(t.Context(), "orders")
		require.NoError(t, err)
		assert.Equal(t, "quorum", limits.Type)
		_, err = api.Limits(t.Context(), "missing")
		assert.ErrorContains(t, err, "404")
		assert.Zero(t, time.Since(began), "no virtual time passes")
	})
}
