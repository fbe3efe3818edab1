package retry_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
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

// atTheLimit gives the one message of a queue back until the broker dead-letters it.
func atTheLimit(t *testing.T, queue string) amqp091.Delivery {
	t.Helper()
	for deliveries := 1; testapp.Depth(t, queue+".dead") == 0; deliveries++ {
		require.LessOrEqual(t, deliveries, 60)
		// A lost channel counts on every version; 4.3 does not count nacks.
		connection, err := amqp091.Dial(broker.URL(t))
		require.NoError(t, err)
		channel, err := connection.Channel()
		require.NoError(t, err)
		d, ok, err := channel.Get(queue, false)
		require.NoError(t, err)
		if ok {
			require.NoError(t, d.Reject(true))
		}
		require.NoError(t, connection.Close())
	}
	return testapp.Take(t, queue+".dead", 1)[0]
}

// policyIn returns the command in a text that sets a policy, and behind it the policy's name, pattern and definition.
func policyIn(t *testing.T, text string) []string {
	t.Helper()
	command := regexp.MustCompile(`rabbitmqctl set_policy -p '/' --apply-to queues '([^']+)' '([^']+)' '([^']+)'`).FindStringSubmatch(text)
	require.NotNil(t, command, text)
	return command
}

func TestNewWorkQueueIsProtected(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	for range 3 { // the queue is not changed, and no warning is logged
		require.NoError(t, subscribe(t, a, queue))
	}
	arguments := testapp.Arguments(t, queue)
	assert.Equal(t, "quorum", arguments["x-queue-type"])
	assert.EqualValues(t, 20, arguments["x-delivery-limit"])
	assert.Equal(t, a.Name, arguments["x-dead-letter-exchange"])
	assert.Equal(t, "dead."+queue, arguments["x-dead-letter-routing-key"])
	assert.Zero(t, a.Log.Warnings(""))

	// Another start of the app, and an app that leaves work queues unchanged, accept the queue.
	again := testapp.NewParts(t, func(b *config.Config) { b.Prefix = a.Name; b.WorkQueueMode = topology.Leave })
	require.NoError(t, subscribe(t, again, queue))
	assert.Zero(t, again.Log.Warnings(""))
}

// TestBrokerDeadLettersAtTheDeliveryLimit: on a protected queue no message is dropped at the delivery limit.
func TestBrokerDeadLettersAtTheDeliveryLimit(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	a.Declare(queue)
	testapp.Send(t, "", queue, testapp.Orders(1)...)
	letter := atTheLimit(t, queue)
	assert.Equal(t, "order 00000", string(letter.Body))
	assert.Equal(t, "delivery_limit", letter.Headers["x-first-death-reason"])
}

func TestExistingQueueIsNotChangedAndOneWarningIsLogged(t *testing.T) {
	t.Parallel()
	for _, mode := range []topology.WorkQueueMode{topology.Protect, topology.Leave} {
		t.Run(string(mode), func(t *testing.T) {
			a := testapp.NewParts(t, func(b *config.Config) { b.WorkQueueMode = mode })
			queue := a.Queue("or.ders")
			existing(t, queue, nil)
			for range 3 {
				require.NoError(t, subscribe(t, a, queue))
			}
			assert.NotContains(t, testapp.Arguments(t, queue), "x-dead-letter-exchange")
			assert.Equal(t, 1, a.Log.Warnings(""))
			assert.Equal(t, 1, a.Log.Count("rabbitmqctl set_policy"))
		})
	}
}

// TestPolicyOfTheWarningProtects: with the command in the warning, a queue that drops its oldest message dead-letters it.
func TestPolicyOfTheWarningProtects(t *testing.T) {
	t.Parallel()
	arguments := amqp091.Table{"x-max-length": int32(1), "x-overflow": "drop-head"}
	a := testapp.NewParts(t, func(b *config.Config) { b.AMQP.Queue.Arguments = arguments })
	queue := a.Queue("or.ders")
	existing(t, queue, arguments)
	require.NoError(t, subscribe(t, a, queue))
	warnings := a.Log.Lines("A policy protects it: ")
	require.Len(t, warnings, 1)
	command := policyIn(t, warnings[0])
	assert.Contains(t, warnings[0], command[0]+" <nil>", "it can be copied")
	testapp.PutPolicy(t, command[1], command[2], command[3])
	for sent := 0; testapp.Depth(t, queue+".dead") == 0; sent++ { // what is dropped before the policy is in effect is lost
		require.Less(t, sent, 50)
		testapp.Send(t, "", queue, testapp.Orders(1)...)
	}
	assert.Equal(t, "maxlen", testapp.Take(t, queue+".dead", 1)[0].Headers["x-first-death-reason"])
}

func TestUnprotectedQuorumQueueIsRefusedWhereItLosesMessages(t *testing.T) {
	t.Parallel()
	quorum := amqp091.Table{"x-queue-type": "quorum"}
	for _, mode := range []topology.WorkQueueMode{topology.Protect, topology.Leave} {
		t.Run(string(mode), func(t *testing.T) {
			a := testapp.NewParts(t, func(b *config.Config) { b.WorkQueueMode = mode })
			queue := a.Queue("orders")
			existing(t, queue, quorum)
			err := subscribe(t, a, queue)
			if v := broker.Version(t); v < 400 || v > 402 {
				require.NoError(t, err)
				assert.Equal(t, 1, a.Log.Warnings(""))
				return
			}
			require.ErrorIs(t, err, topology.ErrUnprotectedQuorum)
			assert.ErrorContains(t, err, queue)
			assert.ErrorContains(t, err, "rabbitmqctl set_policy")

			allowed := testapp.NewParts(t, func(b *config.Config) { b.WorkQueueMode = mode; b.AllowUnprotectedQuorum = true })
			require.NoError(t, subscribe(t, allowed, queue))
			assert.Equal(t, 1, allowed.Log.Warnings(""))
		})
	}
}

// TestExistingQuorumQueueIsProtectedByAPolicy follows docs/adopting.md: the command that the library prints protects a quorum
// queue without a dead-letter exchange, and AllowUnprotectedQuorum accepts it.
func TestExistingQuorumQueueIsProtectedByAPolicy(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	existing(t, queue, amqp091.Table{"x-queue-type": "quorum"})

	// Step 1: run the command that the error or the warning has.
	text := fmt.Sprint(subscribe(t, a, queue), a.Log.Lines("rabbitmqctl set_policy"))
	command := policyIn(t, text)
	assert.Equal(t, 1, strings.Count(text, "rabbitmqctl set_policy"), text)
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
	assert.Equal(t, "order 00000", string(atTheLimit(t, queue).Body), "what would have been dropped")
	allowed.Handle(queue, 1, func(*message.Message) error { return nil })
	allowed.Run()
}

func TestConflictNamesQueueArgumentAndBothValues(t *testing.T) {
	t.Parallel()
	t.Run("work queue", func(t *testing.T) {
		a := testapp.NewParts(t, func(b *config.Config) { b.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 100} })
		queue := a.Queue("orders")
		existing(t, queue, amqp091.Table{"x-max-length": int32(200)})
		err := subscribe(t, a, queue)
		var conflict *topology.ArgumentConflictError
		require.ErrorAs(t, err, &conflict)
		assert.Equal(t, topology.ArgumentConflictError{Object: queue, Argument: "x-max-length", Want: "100", Have: "200"}, *conflict)
	})
	t.Run("tier queue", func(t *testing.T) {
		a := testapp.NewParts(t, testapp.Schedule(time.Minute))
		queue := a.Queue("orders")
		other := a.Builder.Topology(queue).Queues[2].Arguments
		other["x-message-ttl"] = int64(5)
		existing(t, queue+"."+a.Name+".1m", other)
		err := subscribe(t, a, queue)
		var conflict *topology.ArgumentConflictError
		require.ErrorAs(t, err, &conflict)
		assert.Equal(t, queue+"."+a.Name+".1m", conflict.Object)
		assert.Equal(t, [3]string{"x-message-ttl", "60000", "5"}, [3]string{conflict.Argument, conflict.Want, conflict.Have})
	})
	t.Run("exchange", func(t *testing.T) {
		a := testapp.NewParts(t)
		require.NoError(t, broker.Channel(t).ExchangeDeclare(a.Name, "fanout", true, false, false, false, nil))
		err := subscribe(t, a, a.Queue("orders"))
		var conflict *topology.ArgumentConflictError
		require.ErrorAs(t, err, &conflict)
		assert.Equal(t, a.Name, conflict.Object)
		assert.Equal(t, "type", conflict.Argument)
	})
}

// TestTheAppsOwnNamesArgumentsAndTopologyBuilderAreUsed: names and arguments of the app's watermill-amqp configuration.
func TestTheAppsOwnNamesArgumentsAndTopologyBuilderAreUsed(t *testing.T) {
	t.Parallel()
	built := make(chan string, 10)
	var prefix string
	a := testapp.NewParts(t, func(b *config.Config) {
		prefix = b.Prefix
		b.AMQP = amqp.NewDurablePubSubConfig(broker.URL(t), func(topic string) string { return "q." + topic })
		b.AMQP.Exchange.GenerateName = func(topic string) string { return "x." + topic + "." + prefix }
		b.AMQP.Exchange.Type = "topic"
		b.AMQP.QueueBind.GenerateRoutingKey = func(string) string { return "eu.#" }
		b.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 1000, "x-queue-type": "quorum"}
		b.AMQP.TopologyBuilder = &amqp.SpyTopologyBuilder{Built: built}
	})
	topic := a.Queue("orders")
	queue := "q." + topic
	done := testapp.NewLedger()
	a.Handle(topic, 1, done.HandleRetries)
	a.Run()
	assert.Equal(t, queue, <-built)
	assert.EqualValues(t, 1000, testapp.Arguments(t, queue)["x-max-length"])
	testapp.Send(t, "x."+topic+"."+prefix, "eu.shop", testapp.Orders(5)...)
	done.Wait(t, 5, 60*time.Second)
	assert.Empty(t, done.Twice())
}

// TestReplacedWorkQueueIsBoundAgain: watermill-amqp's subscriber consumes the new queue, and declares only once before
// it does.
func TestReplacedWorkQueueIsBoundAgain(t *testing.T) {
	t.Parallel()
	const messages = 50
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	processed := testapp.NewLedger()
	a.Handle(queue, 1, processed.HandleRetries)
	a.Run()
	connection := broker.Connect(t)
	broker.Eventually(t, 60*time.Second, func() bool {
		channel, err := connection.Channel()
		require.NoError(t, err)
		defer channel.Close()
		state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil || state.Consumers == 0 {
			return false
		}
		_, err = channel.QueueDelete(queue, false, false, false)
		require.NoError(t, err)
		_, err = channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
		return err == nil
	}, "the queue has other arguments before the subscriber declares it again")
	testapp.Send(t, "", queue, testapp.Orders(messages)...)
	processed.Wait(t, messages, 60*time.Second)
	a.Settle(queue)
	assert.Empty(t, processed.Twice())
	assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
}

// TestNilBindingKeyIsRefused by Subscribe on v2, which needs none without an exchange, and by NewBuilder on v3.
func TestNilBindingKeyIsRefused(t *testing.T) {
	t.Parallel()
	app := amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix("billing"))
	app.QueueBind.GenerateRoutingKey = nil
	_, err := config.NewBuilder(config.Config{AMQP: app, Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}})
	if amqp.Major == "v2" {
		require.NoError(t, err)
		a := testapp.NewParts(t, func(b *config.Config) { b.AMQP = app })
		err = subscribe(t, a, a.Queue("orders"))
	}
	assert.ErrorContains(t, err, "GenerateRoutingKey is nil")
}
