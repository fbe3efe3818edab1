package publisher_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// exchanges are those of an app's own publisher, one for each topic. They and their queues are declared by the publisher.
type exchanges struct {
	topologies map[string]topology // by exchange, which is the topic

	mu    sync.Mutex
	calls map[string]int
}

func newExchanges(t testing.TB, count int) *exchanges {
	t.Helper()
	name := broker.Name(t, "publisher")
	broker.Clean(t, name)
	e := &exchanges{topologies: map[string]topology{}, calls: map[string]int{}}
	for i := range count {
		exchange := fmt.Sprint(name, ".", i, ".exchange")
		e.topologies[exchange] = topology{exchange: exchange, queue: fmt.Sprint(name, ".", i, ".queue")}
	}
	return e
}

// one returns the only topology.
func (e *exchanges) one() topology {
	for _, topology := range e.topologies {
		return topology
	}
	return topology{}
}

func (e *exchanges) config() halfConfig {
	return halfConfig{
		Route:           func(topic string) (exchange, routingKey string) { return topic, e.topologies[topic].queue },
		DeclareExchange: e.declare,
		Redeclare: func(channel *amqp091.Channel, exchange, _ string) error {
			return e.topologies[exchange].declare(channel, nil)
		},
	}
}

func (e *exchanges) declare(channel *amqp091.Channel, exchange string) error {
	e.mu.Lock()
	e.calls[exchange]++
	e.mu.Unlock()
	return e.topologies[exchange].declareExchange(channel)
}

// called returns how often each exchange was declared.
func (e *exchanges) called() (calls []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for exchange := range e.topologies {
		calls = append(calls, e.calls[exchange])
	}
	return calls
}

// publish publishes the messages to all exchanges at the same time.
func (e *exchanges) publish(t testing.TB, p half, count int) {
	t.Helper()
	var group sync.WaitGroup
	for exchange := range e.topologies {
		for _, msg := range newMessages(count) {
			group.Go(func() { assert.NoError(t, p.Publish(exchange, msg)) })
		}
	}
	group.Wait()
	for _, topology := range e.topologies {
		require.Equal(t, once(newMessages(count)), topology.content(t))
	}
}

func TestExchangesAreDeclaredOncePerConnection(t *testing.T) {
	t.Parallel()
	e := newExchanges(t, 3)
	proxy, uri := broker.Proxy(t)
	connection := connect(t, publisher.Config{Wire: wire.Config{URI: uri}})
	p := on(connection, e.config())
	e.publish(t, p, 50)
	e.publish(t, p, 50)
	require.Equal(t, []int{1, 1, 1}, e.called())

	proxy.Stop()
	broker.Eventually(t, soon, func() bool { return !connection.Health().Connected }, "the connection is lost")
	require.ErrorIs(t, p.Publish(e.one().exchange, newMessage("away")), publish.ErrNotConnected)
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return connection.Health().Connected }, "it reconnects")
	e.publish(t, p, 50)
	require.Equal(t, []int{2, 2, 2}, e.called())
}

func TestTheDefaultExchangeIsNotDeclared(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	p := topology.open(t, func(c *settings) {
		c.Exchange = ""
		c.DeclareExchange = func(*amqp091.Channel, string) error { return errors.New("called") }
	})
	require.NoError(t, p.Publish(topology.queue, newMessage("1")))
}

func TestDeclareExchangeFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("cannot declare")
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	for name, test := range map[string]struct {
		declare func(*amqp091.Channel, string) error
		cause   string
	}{
		"error":   {func(*amqp091.Channel, string) error { return broken }, "cannot declare"},
		"refused": {func(channel *amqp091.Channel, exchange string) error { return breakChannel(channel, exchange, "") }, "PRECONDITION_FAILED"},
		"panic":   {func(*amqp091.Channel, string) error { panic("oops") }, "DeclareExchange panicked: oops"},
		"hangs":   {func(*amqp091.Channel, string) error { <-forever; return nil }, "did not return in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topology := declare(t, nil)
			calls := 0 // calls do not overlap
			p := topology.open(t, func(c *settings) {
				c.DeclareExchange = func(channel *amqp091.Channel, exchange string) error {
					if calls++; calls == 1 {
						return test.declare(channel, exchange)
					}
					return topology.declare(channel, nil)
				}
			})
			err := p.Publish(topology.queue, newMessages(3)...)
			failed := asPublishError(t, err, publish.ErrNotDeclared)
			assert.Equal(t, "message-0", failed.MessageUUID)
			assert.Contains(t, err.Error(), test.cause)
			require.Empty(t, topology.content(t), "nothing was sent")
			if name == "hangs" {
				asPublishError(t, p.Publish(topology.queue, newMessage("joins")), publish.ErrNotDeclared)
				return
			}
			require.NoError(t, p.Publish(topology.queue, newMessage("next")))
			require.NoError(t, p.Publish(topology.queue, newMessage("third")))
			require.Equal(t, 2, calls)
		})
	}
}

// publishUntil publishes messages over a publisher of its own, until the function that it returns is called. That function
// asserts that all were confirmed, and are in the queue.
func publishUntil(t *testing.T, connection *publisher.Connection) (stop func()) {
	t.Helper()
	const callers = 8
	topology := declare(t, nil)
	p := on(connection, halfConfig{Exchange: topology.exchange})
	var confirmed [callers]int
	done := make(chan struct{})
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if !assert.NoError(t, p.Publish(topology.queue, newMessage(fmt.Sprint(caller, "-", confirmed[caller])))) {
					return
				}
				confirmed[caller]++
			}
		})
	}
	return func() {
		close(done)
		group.Wait()
		content, total := topology.content(t), 0
		for caller, count := range confirmed {
			total += count
			for n := range count {
				// A message that was in flight when the channel was closed may be in the queue twice.
				assert.NotZero(t, content[fmt.Sprint(caller, "-", n)])
			}
		}
		assert.NotZero(t, total)
		assert.Len(t, content, total)
	}
}

func TestADeletedExchangeIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	connection := connect(t, publisher.Config{})
	e := newExchanges(t, 2)
	p := on(connection, e.config())
	e.publish(t, p, 1)
	stop := publishUntil(t, connection)
	channel := broker.Channel(t)
	for exchange := range e.topologies {
		require.NoError(t, channel.ExchangeDelete(exchange, false, false))
	}
	var group sync.WaitGroup
	for exchange := range e.topologies {
		for _, msg := range newMessages(50) {
			group.Go(func() { assert.NoError(t, p.Publish(exchange, msg)) })
		}
	}
	group.Wait()
	stop()
	for exchange, topology := range e.topologies {
		content := topology.content(t)
		for _, msg := range newMessages(50) {
			assert.NotZero(t, content[msg.UUID], "%s to %s", msg.UUID, exchange)
		}
		assert.Len(t, content, 50)
	}
	for _, calls := range e.called() {
		assert.Greater(t, calls, 1)
	}
}

// An exchange that is deleted and does not come back harms only the messages that are published to it.
func TestAnExchangeThatStaysDeleted(t *testing.T) {
	t.Parallel()
	broken := errors.New("cannot declare")
	for name, again := range map[string]func(*amqp091.Channel, string) error{
		"declared without effect": func(*amqp091.Channel, string) error { return nil },
		"cannot be declared":      func(*amqp091.Channel, string) error { return broken },
		"without DeclareExchange": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const messages = 20
			topology := declare(t, nil)
			connection := connect(t, publisher.Config{})
			config := halfConfig{Exchange: topology.exchange}
			var mu sync.Mutex
			calls := 0
			if again != nil {
				config.DeclareExchange = func(channel *amqp091.Channel, exchange string) error {
					mu.Lock()
					defer mu.Unlock()
					if calls++; calls == 1 {
						return nil
					}
					return again(channel, exchange)
				}
			}
			p := on(connection, config)
			require.NoError(t, p.Publish(topology.queue, newMessage("before")))
			stop := publishUntil(t, connection)
			require.NoError(t, broker.Channel(t).ExchangeDelete(topology.exchange, false, false))

			var group sync.WaitGroup
			for _, msg := range newMessages(messages) {
				group.Go(func() {
					err := p.Publish(topology.queue, msg)
					// After a failed declaration the next publish declares first, and sends nothing.
					if name == "cannot be declared" && errors.Is(err, publish.ErrNotDeclared) {
						assert.ErrorIs(t, err, broken)
						return
					}
					assert.ErrorIs(t, err, publish.ErrUnroutable)
					assert.True(t, strings.Contains(err.Error(), "NOT_FOUND"), err)
					if name == "cannot be declared" {
						assert.ErrorIs(t, err, broken)
					}
				})
			}
			group.Wait()
			stop()
			require.Equal(t, map[string]int{"before": 1}, topology.content(t))
			if again != nil {
				assert.LessOrEqual(t, calls, 1+messages, "once for each message")
			}
		})
	}
}
