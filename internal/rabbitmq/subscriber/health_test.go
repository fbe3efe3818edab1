package subscriber

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// A simple handler consumes the queue of its topic's name.
type simple struct{ app }

func (simple) QueueOf(topic string) (string, error) { return topic, nil }
func (simple) MayBeQuorum(string) bool              { return true }
func (simple) Bind(*Declaration, string) error      { return nil }
func (simple) Declare(d *Declaration, queue string) error {
	channel, err := d.Channel()
	if err == nil {
		_, err = channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
	}
	return err
}

// A modelled subscription consumes from a model of a broker.
type modelled struct {
	broker     *model.Broker
	gate       *gate.Gate
	connection *Connection
	messages   <-chan *message.Message
}

func (m *modelled) health() retry.SubscriptionHealth { return m.connection.Health().Subscriptions[0] }

// subscribeModel runs f with a subscription of a queue with 16 messages, in virtual time.
func subscribeModel(t *testing.T, handler Handler, config model.Config, f func(m *modelled)) {
	t.Helper()
	t.Parallel()
	config.Latency = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		m := &modelled{broker: model.New(config), gate: gate.New(4)}
		defer m.broker.Stop()
		m.broker.DeclareQueue("orders", amqp091.Table{"x-queue-type": "quorum"})
		for i := range 16 {
			m.broker.Publish("", "orders", amqp091.Publishing{Body: []byte{'a' + byte(i)}})
		}
		var err error
		m.connection, err = Open(wire.Config{URI: "amqp://model", AMQP: &amqp091.Config{Dial: m.broker.Dial}}, nil)
		require.NoError(t, err)
		defer m.connection.Close()
		config := Config{Concurrency: 4, Gate: m.gate, CloseTimeout: time.Second}
		s := NewSubscriber(m.connection, handler, config, watermill.NopLogger{})
		m.messages, err = s.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		f(m)
	})
}

// A probe that looks when a pause has ended finds a handler that is ready, as during the pause.
func TestAHandlerConsumesFromTheEndOfItsPause(t *testing.T) {
	subscribeModel(t, simple{}, model.Config{}, func(m *modelled) {
		m.gate.Set(gate.Operator, 0)
		time.Sleep(time.Minute)
		assert.False(t, m.health().Consuming)
		m.gate.Set(gate.Operator, 1)
		assert.True(t, m.health().Consuming)
		consumes := func() {
			for range 100 {
				assert.True(t, m.health().Consuming)
				time.Sleep(100 * time.Microsecond)
			}
		}
		consumes()
		m.gate.Set(gate.Operator, 0) // and it ends while the consumer is cancelled
		time.Sleep(time.Microsecond)
		m.gate.Set(gate.Operator, gate.None)
		consumes()
	})
}

func TestAHandlerWithoutAConnectionDoesNotConsume(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		lost   string // with this method of the client
		change func(m *modelled)
	}{
		"lost while the limit changes": {"basic.cancel", func(m *modelled) { m.gate.Set(gate.Operator, 1) }},
		"lost while a pause ends": {"channel.open", func(m *modelled) {
			m.gate.Set(gate.Operator, 0)
			time.Sleep(time.Minute)
			m.gate.Set(gate.Operator, 1)
		}},
		"lost before a pause ends": {"", func(m *modelled) {
			m.gate.Set(gate.Operator, 0)
			time.Sleep(time.Minute)
			m.broker.Stop()
			time.Sleep(time.Second)
			m.gate.Set(gate.Operator, 1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var broker atomic.Pointer[model.Broker]
			lose := func(e model.Event) model.Fault {
				if b := broker.Load(); b != nil && e.Method == row.lost {
					go b.Stop()
				}
				return model.None
			}
			subscribeModel(t, simple{}, model.Config{Fault: lose}, func(m *modelled) {
				broker.Store(m.broker)
				row.change(m)
				time.Sleep(time.Second)
				require.False(t, m.connection.Health().Links[0].Connected)
				assert.False(t, m.health().Consuming)
			})
		})
	}
}

func TestALossShowsAlthoughAFunctionOfTheAppHangs(t *testing.T) {
	stands := simple{app{unmarshal: func(string) error { time.Sleep(5 * time.Second); return nil }}}
	subscribeModel(t, stands, model.Config{}, func(m *modelled) {
		time.Sleep(time.Second)
		m.broker.Stop()
		time.Sleep(time.Second)
		assert.False(t, m.health().Consuming)
		assert.NotEmpty(t, m.health().LastError)
	})
}

// A handler that takes longer than the consumer timeout may have begun before a pause.
func TestAChannelThatEndsAfterItsConsumerShows(t *testing.T) {
	before := model.Config{Rules: model.Versions[1]} // 4.3 cancels a consumer
	subscribeModel(t, simple{}, before, func(m *modelled) {
		msg := <-m.messages
		m.gate.Set(gate.Operator, 0)
		time.Sleep(time.Minute)
		assert.Empty(t, m.health().LastError)
		time.Sleep(2 * time.Hour)
		assert.Contains(t, m.health().LastError, "delivery acknowledgement on channel timed out")
		msg.Ack()
	})
}

// A brittle handler declares its queue once for each loss, and cannot while it is broken.
type brittle struct {
	simple
	broken   atomic.Bool
	declared time.Time
}

func (b *brittle) Declare(d *Declaration, queue string) error {
	if b.declared.After(d.LostAt) {
		return nil
	}
	if b.broken.Load() {
		return errors.New("the exchange is gone")
	}
	b.declared = time.Now()
	return b.simple.Declare(d, queue)
}

// The client that deletes a queue may be deleting others, so the next declaration waits. Where it fails, the queue is not
// consumed: a consumer counts deliveries of what is on it.
func TestTheQueueIsDeletedUnderTheConsumer(t *testing.T) {
	handler := &brittle{}
	var consumed atomic.Int32
	counts := func(e model.Event) model.Fault {
		if e.Method == "basic.consume" && e.After {
			consumed.Add(1)
		}
		return model.None
	}
	subscribeModel(t, handler, model.Config{Fault: counts}, func(m *modelled) {
		assert.NotNil(t, <-m.messages) // it stays in flight
		handler.broken.Store(true)
		m.broker.DeleteQueue("orders", false)
		m.broker.DeclareQueue("orders", amqp091.Table{"x-queue-type": "quorum"}) // another client does
		time.Sleep(900 * time.Millisecond)
		assert.Contains(t, m.health().LastError, "the broker cancelled the consumer")
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, consumed.Load())
		assert.False(t, m.health().Consuming)
		assert.Contains(t, m.health().LastError, "the exchange is gone")
		handler.broken.Store(false)
		m.broker.Publish("", "orders", amqp091.Publishing{Body: []byte("after")})
		select {
		case msg := <-m.messages:
			assert.Equal(t, "after", msg.UUID)
		case <-time.After(time.Minute):
			assert.Fail(t, "it is not consumed")
		}
		assert.True(t, m.health().Consuming)
	})
}

// A shutdown ends although the broker does not answer, also while a handler pauses. The broker has all messages back when
// it finds the client gone.
func TestCloseWhileTheBrokerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, pauses := range map[string]bool{"consuming": false, "pausing": true} {
		t.Run(name, func(t *testing.T) {
			subscribeModel(t, simple{}, model.Config{}, func(m *modelled) {
				msg := <-m.messages
				m.broker.Disturb(1, model.Silent)
				if pauses {
					m.gate.Set(gate.Operator, 0)
					time.Sleep(time.Second) // basic.cancel waits for its answer
				}
				msg.Ack()
				began := time.Now()
				assert.NoError(t, m.connection.Close())
				assert.LessOrEqual(t, time.Since(began), 10*time.Second, "before a heartbeat is missed")
				time.Sleep(time.Minute)
				assert.Zero(t, m.broker.Consumers("orders"))
				assert.Len(t, m.broker.Messages("orders"), 16)
			})
		})
	}
}
