package simulation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// ordered is an app with one handler that keeps an order, two retries and one partition. Its test runs in a bubble.
type ordered struct {
	t          *testing.T
	broker     *model.Broker
	connection retry.Connection

	mu        sync.Mutex
	fault     func(model.Event) model.Fault
	published map[string]int // by the name of the connection
}

// inOrder runs a test with an app whose handler is this one. produce is the topic of what it produces, or empty.
func inOrder(
	t *testing.T, options retry.Options, produce string, handle message.HandlerFunc, test func(*ordered),
) {
	synctest.Test(t, func(t *testing.T) {
		o := &ordered{t: t, published: map[string]int{}}
		o.broker = model.New(model.Config{Fault: o.event})
		defer o.broker.Stop()
		own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
		own.Connection.AmqpConfig = &amqp091.Config{Dial: o.broker.Dial}
		var err error
		o.connection, err = config.Connect(config.Config{
			AMQP: own, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, time.Second}},
		}, nil)
		require.NoError(t, err)
		defer o.connection.Close()
		options.Order.Key = func(m *message.Message) string { return m.Metadata.Get("key") }
		options.Order.Partitions = 1
		stop := handling(t, func(router *message.Router) {
			if produce != "" {
				o.connection.AddHandler(router, handlerName, topic, produce, handle, options)
				return
			}
			o.connection.AddConsumerHandler(router, handlerName, topic,
				func(m *message.Message) error { _, err := handle(m); return err }, options)
		})
		test(o)
		stop()
	})
}

func (o *ordered) event(e model.Event) model.Fault {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Method == "basic.publish" && !e.After {
		o.published[e.Name]++
	}
	if o.fault != nil {
		return o.fault(e)
	}
	return model.None
}

func (o *ordered) publish(ids ...string) error {
	var all []*message.Message
	for _, id := range ids {
		msg := message.NewMessage(id, []byte(id))
		msg.Metadata.Set("key", "k")
		all = append(all, msg)
	}
	return o.connection.Publisher().Publish(topic, all...)
}

func (o *ordered) rest() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

func (o *ordered) deadLetters() int { return len(o.broker.Messages(topic + ".dead")) }

// command sends a command of wmretry order, whose answer goes to a queue.
func (o *ordered) command(do, replyTo string) {
	client, err := amqp091.DialConfig("amqp://guest:guest@model/", amqp091.Config{Dial: o.broker.Dial})
	require.NoError(o.t, err)
	defer client.Close()
	channel, err := client.Channel()
	require.NoError(o.t, err)
	require.NoError(o.t, channel.Publish("retry.order", "", false, false, amqp091.Publishing{
		ReplyTo: replyTo, Body: fmt.Appendf(nil, `{"queue":%q,"do":%q,"key":"k"}`, topic, do),
	}))
}

var errOrdered = errors.New("failure")

// A connection that publishes is blocked in an alarm, acks included. So another one moves messages to their partitions.
func TestWhatConsumesPublishesNothing(t *testing.T) {
	inOrder(t, retry.Options{}, "", func(*message.Message) ([]*message.Message, error) { return nil, nil }, func(o *ordered) {
		require.Equal(t, 1, o.broker.Publish("", topic, amqp091.Publishing{Headers: amqp091.Table{uuidHeader: "1", "key": "k"}}))
		o.rest()
		assert.Equal(t, map[string]int{"watermill-retry mover": 1}, o.moves())
	})
}

func (o *ordered) moves() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.published, "watermill-retry publisher") // the probes of its start
	return o.published
}

// What follows a message that was refused is not published: it would overtake it.
func TestNothingOvertakesARefusedMessage(t *testing.T) {
	var handled []string
	inOrder(t, retry.Options{}, "", func(m *message.Message) ([]*message.Message, error) {
		handled = append(handled, m.UUID)
		return nil, nil
	}, func(o *ordered) {
		nacked := false
		o.mu.Lock()
		o.fault = func(e model.Event) model.Fault {
			if e.Method == "basic.publish" && !nacked {
				nacked = true
				return model.Nack
			}
			return model.None
		}
		o.mu.Unlock()
		require.Error(t, o.publish("1", "2", "3"))
		o.rest()
		assert.Empty(t, handled)
	})
}

// The failures of a message that is kept are not in its delivery: those of its produced messages are counted, too.
func TestAProducedMessageOfAKeptMessageFails(t *testing.T) {
	calls := 0
	inOrder(t, retry.Options{}, "missing", func(m *message.Message) ([]*message.Message, error) {
		calls++
		return []*message.Message{message.NewMessage("of-"+m.UUID, nil)}, nil
	}, func(o *ordered) {
		require.NoError(t, o.publish("1"))
		o.rest()
		assert.Equal(t, 3, calls)
		assert.Equal(t, 1, o.deadLetters())
	})
}

// An operator can have the messages of a blocked key handled again. The answer goes nowhere but to who asks.
func TestRetryOfABlockedKey(t *testing.T) {
	calls := 0
	inOrder(t, retry.Options{Order: retry.Order{Block: true}}, "", func(*message.Message) ([]*message.Message, error) {
		if calls++; calls > 3 {
			return nil, nil
		}
		return nil, errOrdered
	}, func(o *ordered) {
		require.NoError(t, o.publish("1"))
		o.rest()
		require.Equal(t, 3, calls)
		o.broker.DeclareQueue(produced, amqp091.Table{"x-queue-type": "quorum"})
		o.command("retry", produced)
		o.rest()
		assert.Equal(t, 4, calls)
		assert.Zero(t, o.deadLetters())
		assert.Empty(t, o.broker.Messages(produced), "another queue than one for replies gets no answer")
	})
}

// Where the broker cannot declare a queue, each try ends the connection that all handlers consume over. That of the
// commands is declared on each connection.
func TestAQueueIsDeclaredAgainAfterAPause(t *testing.T) {
	for name, row := range map[string]struct {
		most   int // losses in a minute
		breaks func(*model.Broker)
	}{
		"a partition": {30, func(broker *model.Broker) { broker.DeleteQueue(topic+".order.0", true) }},
		"the queue of the commands": {14, func(broker *model.Broker) {
			for number, name := range broker.Connections() {
				if name == "watermill-retry subscriber" {
					broker.Disturb(number, model.Cut)
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
			inOrder(t, retry.Options{}, "", handle, func(o *ordered) {
				o.broker.Refuse(func(string) uint16 { return amqp091.InternalError })
				row.breaks(o.broker)
				time.Sleep(time.Minute)
				assert.LessOrEqual(t, o.connection.Health().Links[0].Reconnects, row.most)
				o.broker.Refuse(nil)
				o.rest()
				require.NoError(t, o.connection.Health().Ready())
				isOfCommands := func(name string) bool { return strings.HasPrefix(name, "retry.order.") }
				assert.True(t, slices.ContainsFunc(o.broker.Queues(), isOfCommands))
			})
		})
	}
}

// A breaker gives all messages back to their partition in each pause, and a probe that fails keeps its place.
func TestABreakerGivesAllBackInEachPause(t *testing.T) {
	var ids, handled []string
	for i := range 20 {
		ids = append(ids, fmt.Sprint(i))
	}
	var up atomic.Bool
	probes := 0
	policy := retry.Policy{Schedule: backoff.Schedule{time.Second, time.Second, time.Second},
		Breaker: &retry.Breaker{Least: 2, Pause: 10 * time.Second, MaxPause: 10 * time.Second}}
	inOrder(t, retry.Options{Policy: &policy}, "", func(m *message.Message) ([]*message.Message, error) {
		if !up.Load() {
			probes++
			return nil, errOrdered
		}
		handled = append(handled, m.UUID)
		return nil, nil
	}, func(o *ordered) {
		require.NoError(t, o.publish(ids...))
		whole := map[int]bool{} // pauses in which the partition has all messages, by the calls before
		for range 1200 {
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
			if o.hasAll(len(ids)) {
				whole[probes] = true
				assert.NoError(t, o.connection.Health().Ready(), "a paused handler is no fault")
			}
		}
		assert.GreaterOrEqual(t, len(whole), 4)
		up.Store(true)
		o.rest()
		assert.Equal(t, ids, handled)
		assert.Zero(t, o.deadLetters())
	})
}

// hasAll reports whether the partition has so many messages, which no consumer has, while none consumes it.
func (o *ordered) hasAll(count int) bool {
	all := o.broker.Messages(topic + ".order.0")
	return len(all) == count && o.broker.Consumers(topic+".order.0") == 0 &&
		!slices.ContainsFunc(all, func(m model.Message) bool { return m.Unacknowledged })
}
