package retry_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// letterStore returns a Store of the broker, for apps with a prefix.
func letterStore(t *testing.T, prefix string) *deadletter.Store {
	t.Helper()
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: prefix}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}

// redriveAll redrives the dead letters of a work queue. It needs neither the schedule nor the configuration of the app.
func redriveAll(t *testing.T, work string) (letters.Summary, error) {
	t.Helper()
	return letterStore(t, "").Redrive(t.Context(), deadletter.QueueOf(work), letters.Redrive{By: "test@example.com"})
}

// TestRedriveFollowsTheDocumentation: the code of docs/dead-letters.md redrives a dead letter of one consumer group of
// a fan-out. The other group gets nothing again.
func TestRedriveFollowsTheDocumentation(t *testing.T) {
	t.Parallel()
	topic := broker.Name(t, "orders")
	broker.Clean(t, topic)
	app := func(name string) amqp.Config {
		return amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix(name))
	}
	group := func(name string, handler message.NoPublishHandlerFunc) *testapp.App {
		a := testapp.New(t, func(b *config.Config) {
			b.AMQP = app(name)
			b.Prefix = "retry_" + topic
		})
		a.Handle(topic, 1, handler)
		a.Run()
		return a
	}
	redriven, processed, others := testapp.NewLedger(), testapp.NewLedger(), testapp.NewLedger()
	var repaired atomic.Bool
	billing := group("billing", func(msg *message.Message) error {
		record, retried := retry.ReadRecord(msg.Metadata)
		switch {
		case !repaired.Load():
			return backoff.Permanent(errDown)
		case !retried: // the redriven message has all of its retries again
			redriven.Add(msg.UUID)
			for _, key := range retry.RecordKeys() {
				assert.NotContains(t, msg.Metadata, key)
			}
			assert.Equal(t, "7", msg.Metadata["retry_invoice"], "the app's own")
			assert.Contains(t, msg.Metadata[recordkey.Properties], "c-1", "the correlation id")
			history, found := letters.ReadRedriven(msg.Metadata)
			assert.True(t, found, "the history of redrives")
			assert.Equal(t, 1, history.Times)
			return errDown
		}
		assert.Equal(t, 1, record.Failures)
		processed.Add(msg.UUID)
		return nil
	})
	group("shipping", others.Handle)
	sent := testapp.Orders(1)
	sent[0].CorrelationId = "c-1"
	sent[0].Headers["retry_invoice"] = "7"
	testapp.Send(t, topic, "", sent...)
	broker.Eventually(t, 60*time.Second, func() bool { return testapp.Depth(t, topic+"_billing.dead") == 1 },
		"a dead letter")
	repaired.Store(true)
	summary, err := redriveAll(t, topic+"_billing")
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)

	processed.Wait(t, 1, 60*time.Second)
	others.Wait(t, 1, 60*time.Second)
	billing.Settle(topic)
	assert.Zero(t, testapp.Depth(t, topic+"_billing.dead"))
	assert.Equal(t, map[string]int{id0: 1}, redriven.Counts())
	assert.Equal(t, redriven.Counts(), processed.Counts())
	assert.Equal(t, redriven.Counts(), others.Counts())
}

// TestDeadLettersOfAGroup: the configuration that has no name for a queue, and the Group of a handler, are enough to
// read the dead letters of this group. Its queue is enough to redrive them.
func TestDeadLettersOfAGroup(t *testing.T) {
	t.Parallel()
	topic := broker.Name(t, "orders")
	broker.Clean(t, topic)
	app := amqp.NewDurablePubSubConfig(broker.URL(t), nil)
	rabbit, err := config.Connect(config.Config{AMQP: app, Settings: rabbitmq.Settings{Prefix: "retry_" + topic},
		Policy: retry.Policy{Schedule: backoff.Constant(time.Second, 1)}}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, rabbit.Close()) }()
	router := message.NewDefaultRouter(watermill.NopLogger{})
	processed, others := testapp.NewLedger(), testapp.NewLedger()
	var repaired atomic.Bool
	rabbit.AddConsumerHandler(router, "billing", topic, func(msg *message.Message) error {
		if !repaired.Load() {
			return backoff.Permanent(errDown)
		}
		processed.Add(msg.UUID)
		return nil
	}, retry.Options{Group: "billing"})
	rabbit.AddConsumerHandler(router, "shipping", topic, others.Handle, retry.Options{Group: "shipping"})
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(t.Context()) }()
	defer func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-stopped)
	}()
	select {
	case <-router.Running():
	case <-time.After(readerTime):
		require.Fail(t, "the router does not run")
	}
	require.NoError(t, rabbit.Publisher().Publish(topic, message.NewMessage(id0, nil)))
	broker.Eventually(t, readerTime, func() bool { return testapp.Depth(t, topic+"_billing.dead") == 1 }, "a dead letter")

	reader, err := config.DeadLetterSubscriberConfig(app, "mailing")
	require.NoError(t, err)
	missing, err := amqp.NewSubscriber(reader, watermill.NopLogger{})
	require.NoError(t, err)
	_, err = missing.Subscribe(t.Context(), topic)
	require.ErrorContains(t, err, `correct the topic or the group "mailing"`)
	require.NoError(t, missing.Close())

	repaired.Store(true)
	_, err = redriveAll(t, topic+"_billing")
	require.NoError(t, err)
	processed.Wait(t, 1, readerTime)
	others.Wait(t, 1, readerTime)
	assert.Zero(t, testapp.Depth(t, topic+"_billing.dead"))
	assert.Equal(t, map[string]int{id0: 1}, processed.Counts())
	assert.Equal(t, map[string]int{id0: 1}, others.Counts())
}

// TestRedriveEnds: messages that fail again at once are dead letters again. They are not redriven a second time.
func TestRedriveEnds(t *testing.T) {
	t.Parallel()
	const dead = 5
	a := testapp.New(t)
	queue := a.Queue("orders")
	handled := testapp.NewLedger()
	a.Handle(queue, 4, func(msg *message.Message) error {
		handled.Add(msg.UUID)
		return backoff.Permanent(errDown)
	})
	a.Run()
	testapp.Send(t, "", queue, testapp.Orders(dead)...)
	isDead := func() bool { return testapp.Depth(t, queue+".dead") == dead }
	broker.Eventually(t, 60*time.Second, isDead, "all messages are dead letters")

	summary, err := redriveAll(t, queue)
	require.NoError(t, err)
	assert.Equal(t, [2]int{dead, dead}, [2]int{summary.Total, summary.Done})

	a.Settle(queue)
	broker.Eventually(t, 60*time.Second, isDead, "all messages are dead letters again")
	for identity, count := range handled.Counts() {
		assert.Equal(t, 2, count, identity)
	}
	assert.Equal(t, dead, handled.Len())
}

// TestRedriveToAQueueThatIsGone: the error reports it, and the dead letter stays.
func TestRedriveToAQueueThatIsGone(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	a.Declare(queue)
	testapp.Delete(t, queue)
	testapp.Send(t, a.Name, "dead."+queue, testapp.Orders(1)...)

	summary, err := redriveAll(t, queue)

	require.ErrorIs(t, err, letters.ErrNoTarget)
	require.ErrorContains(t, err, queue)
	assert.Equal(t, [2]int{1, 0}, [2]int{summary.Total, summary.Done})
	letter := testapp.Take(t, queue+".dead", 1)[0]
	assert.Equal(t, "order "+id0, string(letter.Body))
}
