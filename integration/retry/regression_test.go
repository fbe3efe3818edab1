package retry_test

import (
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
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// bodyOnly is an app's marshaler that ignores metadata.
type bodyOnly struct{}

func (bodyOnly) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload, MessageId: msg.UUID}, nil
}

func (bodyOnly) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return message.NewMessage(d.MessageId, d.Body), nil
}

func TestRetriesEndWithAMarshalerThatIgnoresMetadata(t *testing.T) {
	t.Parallel()
	a := testapp.New(t, func(b *config.Config) { b.AMQP.Marshaler = bodyOnly{} })
	queue := a.Queue("orders")
	calls := testapp.NewLedger()
	a.Handle(queue, 1, func(msg *message.Message) error {
		calls.Add(msg.UUID)
		return errDown
	})
	a.Run()
	testapp.Send(t, "", queue,
		amqp091.Publishing{MessageId: "m-1", Headers: amqp091.Table{"trace": "abc"}, Body: []byte("order")})
	letter := testapp.Take(t, queue+".dead", 1)[0]
	assert.Equal(t, map[string]int{"m-1": 3}, calls.Counts())
	assert.Equal(t, string(retry.DeadReasonExhausted), letter.Headers[recordkey.DeadReason])
	assert.Equal(t, "abc", letter.Headers["trace"], "a header that the app's marshaler ignores is kept")
	assert.Equal(t, "m-1", letter.MessageId)
}

// TestPriorityDoesNotDelayOthers: quorum queues of RabbitMQ 4.0 keep prioritised messages apart, and expire only at
// their head.
func TestPriorityDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	const tier = 2 * time.Second
	a := testapp.New(t, testapp.Schedule(tier))
	queue := a.Queue("orders")
	type call struct {
		body string
		at   time.Time
	}
	calls := make(chan call, 10)
	a.Handle(queue, 2, func(msg *message.Message) error {
		calls <- call{string(msg.Payload), time.Now()}
		if _, retried := retry.ReadRecord(msg.Metadata); retried {
			return nil
		}
		return errDown
	})
	a.Run()
	testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("normal")})
	first := <-calls
	broker.Eventually(t, 60*time.Second, func() bool { return testapp.Depth(t, queue+"."+a.Name+".2s") == 1 },
		"the message is on the tier")
	<-time.After(time.Until(first.at.Add(tier * 3 / 4))) // late enough that waiting for the second message would be visible
	testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("urgent"), Priority: 9})
	urgent := <-calls
	back := <-calls
	require.Equal(t, "urgent", urgent.body)
	assert.Equal(t, "normal", back.body, "the message that failed first comes back first")
	assert.Equal(t, "urgent", (<-calls).body)
}

// failing runs an app whose 40 messages fail once, with the given tier. Before the messages are due, it deletes the
// app's return exchange and runs remove.
func failing(t *testing.T, tier time.Duration, remove func(channel *amqp091.Channel, tier string)) (a *testapp.Parts,
	queue string, processed *testapp.Ledger) {
	t.Helper()
	a = testapp.NewParts(t, testapp.Schedule(tier))
	queue, processed = a.Queue("orders"), testapp.NewLedger()
	a.Handle(queue, 4, processed.HandleRetries)
	a.Run()
	channel := broker.Channel(t)
	require.NoError(t, channel.ExchangeDelete(a.Name+".return", false, false))
	remove(channel, queue+"."+a.Name+"."+backoff.Tier(tier).String())
	testapp.Send(t, "", queue, testapp.Orders(fails)...)
	return a, queue, processed
}

const fails = 40

// onceEach waits until every message is processed, and asserts that none came twice and none is an orphan.
func onceEach(t *testing.T, a *testapp.Parts, queue string, processed *testapp.Ledger) {
	t.Helper()
	processed.Wait(t, fails, 60*time.Second)
	a.Settle(queue)
	assert.Empty(t, processed.Twice())
	assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
}

// TestReturnExchangeDeletedWhileTheAppRuns: no message comes back or is lost until the next subscription declares it
// again.
func TestReturnExchangeDeletedWhileTheAppRuns(t *testing.T) {
	t.Parallel()
	// No message is due before the exchange exists again: RabbitMQ would try again only after three minutes.
	a, queue, processed := failing(t, 3*time.Second, func(*amqp091.Channel, string) {})
	broker.Eventually(t, 60*time.Second, func() bool {
		return len(a.Events(retry.Retried)) == fails
	}, "all wait")
	require.Zero(t, processed.Len())
	require.NoError(t, subscribe(t, a, queue))
	onceEach(t, a, queue, processed)
}

// TestTierAndReturnExchangeDeletedTogether: the redeclaration binds the work queue again.
func TestTierAndReturnExchangeDeletedTogether(t *testing.T) {
	t.Parallel()
	a, queue, processed := failing(t, 200*time.Millisecond, func(channel *amqp091.Channel, tier string) {
		_, err := channel.QueueDelete(tier, false, false, false)
		require.NoError(t, err)
	})
	onceEach(t, a, queue, processed)
}

// TestReplacedWorkQueueIsInspectedAgain: the queue is deleted and declared again with other arguments.
func TestReplacedWorkQueueIsInspectedAgain(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	require.NoError(t, subscribe(t, a, queue))
	testapp.Delete(t, queue)
	existing(t, queue, nil)
	require.NoError(t, subscribe(t, a, queue), "the queue has other arguments now")
	require.NoError(t, subscribe(t, a, queue))
	assert.Equal(t, 1, a.Log.Warnings(""))
}

// TestReplacedWorkQueueIsBoundAgain: watermill-amqp's subscriber consumes the new queue, and declares only once before
// it does.
func TestReplacedWorkQueueIsBoundAgain(t *testing.T) {
	t.Parallel()
	const messages = 50
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	tries, processed := testapp.NewLedger(), testapp.NewLedger()
	a.Handle(queue, 1, func(msg *message.Message) error {
		if tries.Add(msg.UUID) == 1 {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	})
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

// TestAloneSubscribeInAnAlarm: consuming works although the broker reads nothing from publishers.
func TestAloneSubscribeInAnAlarm(t *testing.T) {
	a := testapp.NewParts(t)
	queue := a.Queue("orders")
	restore := broker.Alarm(t)
	done := make(chan error, 1)
	go func() { done <- subscribe(t, a, queue) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(60 * time.Second):
		restore()
		t.Fatal("Subscribe did not return during the alarm")
	}
	restore()
	require.NoError(t, subscribe(t, a, queue))
}
