package retry_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

var errDown = errors.New("the bank is down")

// subscribe declares what a subscription declares, and consumes nothing.
func subscribe(t *testing.T, a *testapp.Parts, queue string) error {
	t.Helper()
	s, err := amqp.NewSubscriber(a.Builder.SubscriberConfig(), a.Log)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s.SubscribeInitialize(queue)
}

func existing(t *testing.T, queue string, arguments amqp091.Table) {
	t.Helper()
	_, err := broker.Channel(t).QueueDeclare(queue, true, false, false, false, arguments)
	require.NoError(t, err)
}

// longName is that of a queue for which the broker cuts the text of a refusal off, before the value of the argument.
var longName = strings.Repeat("or.ders", 30)

// TestAQueueIsDeclaredAgain by another start of the app, and by one that leaves work queues unchanged, without a warning.
func TestAQueueIsDeclaredAgain(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"orders", longName} {
		_, c := testapp.Model(t)
		for _, mode := range []topology.WorkQueueMode{topology.Protect, topology.Protect, topology.Leave} {
			c.WorkQueueMode = mode
			a := testapp.Build(t, c)
			require.NoError(t, subscribe(t, a, queue))
			require.NoError(t, subscribe(t, a, queue))
			assert.Zero(t, a.Log.Warnings(""))
		}
	}
}

// TestAValueThatTheBrokerDoesNotShow because the name of the queue is long is set by the app.
func TestAValueThatTheBrokerDoesNotShow(t *testing.T) {
	t.Parallel()
	b, c := testapp.Model(t)
	b.DeclareQueue(longName, amqp091.Table{"x-dead-letter-exchange": "dead"})
	err := subscribe(t, testapp.Build(t, c), longName)
	require.ErrorContains(t, err, "'x-dead-letter-exchange'")
	require.ErrorContains(t, err, "set it in AMQP.Queue.Arguments")
	connection, err := wire.Config{URI: c.AMQP.Connection.AmqpURI, AMQP: c.AMQP.Connection.AmqpConfig}.Connect(t.Context(), "a look", nil)
	require.NoError(t, err)
	defer connection.Close()
	_, _, err = workqueue.Arguments(workqueue.NewIdle(connection), topology.Queue{Name: longName, Durable: true})
	require.ErrorContains(t, err, "does not show the value")
	require.NotContains(t, err.Error(), "AMQP.Queue.Arguments", "no app looks at its own queue here")
	c.AMQP.Queue.Arguments = amqp091.Table{"x-dead-letter-exchange": "dead"}
	require.NoError(t, subscribe(t, testapp.Build(t, c), longName))
}

// TestExistingQueuesAreNotChanged: one warning is logged. An unprotected quorum queue is refused where it loses messages.
func TestExistingQueuesAreNotChanged(t *testing.T) {
	t.Parallel()
	for _, rules := range model.Versions {
		for _, mode := range []topology.WorkQueueMode{topology.Protect, topology.Leave} {
			for _, kind := range []string{"classic", "quorum"} {
				for _, queue := range []string{"or.ders", longName} {
					t.Run(fmt.Sprint(rules.Version, mode, kind, len(queue)), func(t *testing.T) {
						b, c := testapp.ModelOf(t, rules)
						b.DeclareQueue(queue, amqp091.Table{"x-queue-type": kind})
						c.WorkQueueMode = mode
						if kind == "quorum" && rules.Version == "4.0.5" {
							err := subscribe(t, testapp.Build(t, c), queue)
							require.ErrorIs(t, err, topology.ErrUnprotectedQuorum)
							assert.ErrorContains(t, err, queue)
							assert.ErrorContains(t, err, "rabbitmqctl set_policy")
							c.AllowUnprotectedQuorum = true
						}
						a := testapp.Build(t, c)
						for range 3 {
							require.NoError(t, subscribe(t, a, queue))
						}
						assert.Equal(t, 1, a.Log.Warnings(""))
						assert.Equal(t, 1, a.Log.Count("rabbitmqctl set_policy"))
					})
				}
			}
		}
	}
}

// TestAStreamIsRefused: what is published while no consumer reads it is never handled.
func TestAStreamIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []topology.WorkQueueMode{topology.Protect, topology.Leave} {
		a := testapp.NewParts(t, func(c *config.Config) { c.WorkQueueMode = mode })
		for _, queue := range []string{a.Queue("orders"), a.Queue(longName[:180])} {
			existing(t, queue, amqp091.Table{"x-queue-type": "stream"})
			require.ErrorIs(t, subscribe(t, a, queue), workqueue.ErrStream)
		}
	}
}

// TestAQueueOfTheDefaultTypeIsRefused where that is quorum, also by an app that leaves its work queues as they are.
func TestAQueueOfTheDefaultTypeIsRefused(t *testing.T) {
	t.Parallel()
	for _, rules := range model.Versions {
		for _, kind := range []string{"", "classic", "quorum"} {
			for _, own := range []amqp091.Table{nil, {"x-queue-type": "classic"}} {
				b, c := testapp.ModelOf(t, rules)
				b.SetDefaultType(kind)
				c.WorkQueueMode, c.AMQP.Queue.Arguments = topology.Leave, own
				for range 2 { // the first one declares the queue
					err := subscribe(t, testapp.Build(t, c), "orders")
					if kind == "quorum" && own == nil && rules.Version == "4.0.5" {
						require.ErrorIs(t, err, topology.ErrUnprotectedQuorum)
					} else {
						require.NoError(t, err)
					}
				}
				c.AllowUnprotectedQuorum = true
				require.NoError(t, subscribe(t, testapp.Build(t, c), "orders"))
			}
		}
	}
}

// TestExistingQuorumQueueIsProtectedByAPolicy follows docs/adopting.md: the command that the library prints protects a quorum
// queue without a dead-letter exchange, and AllowUnprotectedQuorum accepts it.
func TestExistingQuorumQueueIsProtectedByAPolicy(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("or.ders")
	existing(t, queue, amqp091.Table{"x-queue-type": "quorum"})

	// Step 1: run the command that the error or the warning has.
	command := policyIn(t, fmt.Sprint(subscribe(t, a, queue), a.Log.Lines("rabbitmqctl set_policy")))
	t.Cleanup(func() { testapp.DeletePolicy(t, command[1]) })
	broker.Ctl(t, "set_policy", "-p", "/", "--apply-to", "queues", command[1], command[2], command[3])

	// Step 2: the command shows the policy.
	shown := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(queue+"\t"+command[1]) + `$`)
	testapp.Eventually(t, func() bool { return shown.MatchString(broker.Ctl(t, "list_queues", "name", "policy")) },
		"the policy is in effect")

	// Step 3: AllowUnprotectedQuorum.
	allowed := testapp.NewParts(t, func(b *config.Config) { b.Prefix, b.AllowUnprotectedQuorum = a.Name, true })
	require.NoError(t, subscribe(t, allowed, queue))
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	for deliveries := 1; testapp.Depth(t, queue+".dead") == 0; deliveries++ { // what would have been dropped
		require.LessOrEqual(t, deliveries, 60)
		channel := broker.Channel(t)
		if d, ok, err := channel.Get(queue, false); ok {
			require.NoError(t, d.Reject(true)) // 4.3 does not count nacks
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, channel.Close())
	}
	assert.Equal(t, "order 00000", string(testapp.Take(t, queue+".dead", 1)[0].Body))
	allowed.Handle(queue, 1, func(*message.Message) error { return nil })
	allowed.Run()
}

func TestConflictNamesQueueArgumentAndBothValues(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *config.Config) { b.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 100} })
	queue := a.Queue("orders")
	conflicts := func(want topology.ArgumentConflictError) {
		t.Helper()
		var conflict *topology.ArgumentConflictError
		require.ErrorAs(t, subscribe(t, a, queue), &conflict)
		conflict.Cause = nil
		assert.Equal(t, want, *conflict)
	}
	existing(t, queue, amqp091.Table{"x-max-length": int32(200)})
	conflicts(topology.ArgumentConflictError{Object: queue, Argument: "x-max-length", Want: "100", Have: "200"})
	testapp.Delete(t, queue)
	require.NoError(t, broker.Channel(t).ExchangeDeclare(a.Name, "fanout", true, false, false, false, nil))
	conflicts(topology.ArgumentConflictError{Object: a.Name, Argument: "type", Want: "direct", Have: "fanout"})
}

// TestTheAppsOwnNamesArgumentsAndTopologyBuilderAreUsed: names and arguments of the app's watermill-amqp configuration.
func TestTheAppsOwnNamesArgumentsAndTopologyBuilderAreUsed(t *testing.T) {
	t.Parallel()
	built := make(chan string, 10)
	b, c := testapp.Model(t, func(c *config.Config) {
		c.AMQP = amqp.NewDurablePubSubConfig(c.AMQP.Connection.AmqpURI, func(topic string) string { return "q." + topic })
		c.AMQP.Exchange.GenerateName = func(topic string) string { return "x." + topic }
		c.AMQP.Exchange.Type = "topic"
		c.AMQP.QueueBind.GenerateRoutingKey = func(string) string { return "eu.#" }
		c.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 2, "x-queue-type": "quorum"}
		c.AMQP.TopologyBuilder = &amqp.SpyTopologyBuilder{Built: built}
	})
	require.NoError(t, subscribe(t, testapp.Build(t, c), "orders"))
	assert.Equal(t, "q.orders", <-built)
	for range 3 {
		assert.Equal(t, 1, b.Publish("x.orders", "eu.shop", amqp091.Publishing{}))
	}
	assert.Len(t, b.Messages("q.orders"), 2, "its limit")
}

// TestReplacedWorkQueueIsBoundAgain: watermill-amqp's subscriber consumes the new queue, and declares only once before
// it does.
func TestReplacedWorkQueueIsBoundAgain(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		const messages = 50
		a, processed := testapp.Build(t, c), testapp.NewLedger()
		a.Handle("orders", 1, processed.HandleRetries)
		a.Run()
		time.Sleep(time.Second)
		require.Equal(t, 1, b.Consumers("orders"))
		b.DeleteQueue("orders", false)
		b.DeclareQueue("orders", amqp091.Table{"x-queue-type": "classic"})
		for i := range messages {
			b.Publish("", "orders", amqp091.Publishing{Headers: amqp091.Table{"_watermill_message_uuid": fmt.Sprint(i)}})
		}
		time.Sleep(time.Minute)
		assert.Equal(t, messages, processed.Len())
		assert.Empty(t, processed.Twice())
		assert.Empty(t, b.Messages("retry.orphans"))
	})
}

// TestNilBindingKeyIsRefused by Subscribe on v2, which needs none without an exchange, and by NewBuilder on v3.
func TestNilBindingKeyIsRefused(t *testing.T) {
	t.Parallel()
	_, c := testapp.Model(t, testapp.FanOut)
	c.AMQP.Queue.GenerateName = amqp.GenerateQueueNameTopicNameWithSuffix("billing")
	c.AMQP.QueueBind.GenerateRoutingKey = nil
	_, err := config.NewBuilder(c)
	if amqp.Major == "v2" {
		require.NoError(t, err)
		err = subscribe(t, testapp.Build(t, c), "orders")
	}
	assert.ErrorContains(t, err, "GenerateRoutingKey is nil")
}

// TestQueuesWithTheSameSuffixStayApart: a suffix pattern would send the messages of sales.billing to billing.
func TestQueuesWithTheSameSuffixStayApart(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		a, handled := testapp.Connect(t, c), testapp.NewLedger()
		queues, want := []string{"billing", "sales.billing"}, map[string]int{}
		for _, queue := range queues {
			a.Handle(queue, 2, func(msg *message.Message) error {
				handled.Add(queue + " of " + msg.UUID[:strings.Index(msg.UUID, "/")])
				if testapp.Failures(msg) < 2 { // waits on both tiers
					return errDown
				}
				return nil
			})
		}
		a.Run()
		for _, queue := range queues {
			want[queue+" of "+queue] = 3 * 20
			for i := range 20 {
				id := fmt.Sprint(queue, "/", i)
				if i%2 == 0 {
					a.Publish(queue, id)
				} else { // as a tier that has left the schedule
					b.Publish("retry.return", "7s."+queue, amqp091.Publishing{Headers: amqp091.Table{"_watermill_message_uuid": id}})
				}
			}
		}
		time.Sleep(time.Minute)
		assert.Equal(t, want, handled.Counts())
		assert.Empty(t, slices.Concat(b.Messages("billing.dead"), b.Messages("sales.billing.dead"), b.Messages("retry.orphans")))
	})
}
