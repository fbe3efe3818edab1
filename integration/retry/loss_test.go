package retry_test

import (
	"context"
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
	"github.com/tieredretry/watermill-retry/retry"
)

// TestStockMarshalerLoopsAndOursDoesNot sends a message with a header that is not a string.
func TestStockMarshalerLoopsAndOursDoesNot(t *testing.T) {
	t.Parallel()
	odd := amqp091.Publishing{Headers: amqp091.Table{"attempt": int32(1)}, Body: []byte("odd")}

	t.Run("stock", func(t *testing.T) {
		queue := broker.Name(t, "stock")
		broker.Clean(t, queue)
		logs := &testapp.Log{}
		subscriber, err := amqp.NewSubscriber(amqp.NewDurableQueueConfig(broker.URL(t)), logs)
		require.NoError(t, err)
		_, err = subscriber.Subscribe(context.Background(), queue)
		require.NoError(t, err)
		testapp.Send(t, "", queue, odd)
		broker.Eventually(t, 60*time.Second, func() bool { return logs.Count("Processing message failed, sending nack") > 1000 },
			"more than a thousand redeliveries of one message; if this no longer happens, watermill-amqp has fixed it")
		require.NoError(t, subscriber.Close())
	})
	t.Run("with the builder", func(t *testing.T) {
		a := testapp.New(t)
		queue := a.Queue("orders")
		calls := make(chan string, 100)
		a.Handle(queue, 1, func(msg *message.Message) error {
			calls <- string(msg.Payload)
			return backoff.Permanent(errDown)
		})
		a.Run()
		testapp.Send(t, "", queue, odd)
		letter := testapp.Take(t, queue+".dead", 1)[0]
		assert.Equal(t, int32(1), letter.Headers["attempt"])
		assert.Len(t, calls, 1)
		assert.Zero(t, a.Log.Count("sending nack"))
	})
}

// TestTopologyDeletedWhileTheAppRuns: after the tier queue, or the exchange, is deleted, the next failure declares it again.
func TestTopologyDeletedWhileTheAppRuns(t *testing.T) {
	t.Parallel()
	const failing = 200
	for _, row := range []struct {
		name   string
		remove func(t *testing.T, a *testapp.App, queue string)
	}{
		{"tier queue", func(t *testing.T, a *testapp.App, queue string) {
			_, err := broker.Channel(t).QueueDelete(queue+"."+a.Name+".300ms", false, false, false)
			require.NoError(t, err)
		}},
		{"exchange", func(t *testing.T, a *testapp.App, _ string) {
			require.NoError(t, broker.Channel(t).ExchangeDelete(a.Name, false, false))
		}},
		{"dead-letter queue", func(t *testing.T, _ *testapp.App, queue string) {
			_, err := broker.Channel(t).QueueDelete(queue+".dead", false, false, false)
			require.NoError(t, err)
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t, testapp.Schedule(300*time.Millisecond))
			queue := a.Queue("orders")
			processed := testapp.NewLedger()
			a.Handle(queue, 8, func(msg *message.Message) error {
				if _, retried := retry.ReadRecord(msg.Metadata); !retried {
					return errDown
				}
				if processed.Len()%2 == 0 {
					processed.Add(msg.UUID)
					return nil
				}
				processed.Add(msg.UUID)
				return errDown // dead-lettered
			})
			a.Run()
			row.remove(t, a, queue)
			testapp.Send(t, "", queue, testapp.Orders(failing)...)
			processed.Wait(t, failing, 60*time.Second)
			broker.Eventually(t, 60*time.Second, func() bool {
				a.Mu.Lock()
				defer a.Mu.Unlock()
				return len(a.Deaths) > 0 && testapp.Depth(t, queue+".dead") == len(a.Deaths)
			}, "every dead letter is in the dead-letter queue")
			a.Settle(queue)
			assert.Empty(t, processed.Twice())
			assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
		})
	}
}

// TestOrphansDoNotBlockOtherMessages: the work queue is deleted while it has no consumer and its messages wait.
func TestOrphansDoNotBlockOtherMessages(t *testing.T) {
	t.Parallel()
	const orphans, others = 40, 40 // at-least-once dead-lettering has a window of 32
	a := testapp.New(t, testapp.Schedule(8*time.Second))
	gone, there := a.Queue("gone"), a.Queue("there")
	a.Declare(gone, there)
	for i := range orphans {
		msg := message.NewMessage("orphan "+testapp.ID(i), nil)
		require.NoError(t, a.Fail(gone, msg, errDown))
	}
	destroyed, err := broker.Channel(t).QueueDelete(gone, false, false, false)
	require.NoError(t, err)
	require.Zero(t, destroyed, "no message was due before")
	for i := range others {
		require.NoError(t, a.Fail(there, message.NewMessage(testapp.ID(i), nil), errDown))
	}
	seen := testapp.NewLedger()
	for _, d := range testapp.Take(t, there, others) {
		seen.Add(d.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, others, seen.Len())
	parked := testapp.NewLedger()
	for _, d := range testapp.Take(t, a.Name+".orphans", orphans) {
		parked.Add(d.Headers["_watermill_message_uuid"].(string))
	}
	assert.Equal(t, orphans, parked.Len())
	assert.Empty(t, append(seen.Twice(), parked.Twice()...))
}

// TestQueuesWithTheSameSuffixStayApart: a suffix pattern would send the messages of sales.billing to billing.
func TestQueuesWithTheSameSuffixStayApart(t *testing.T) {
	t.Parallel()
	const each = 20
	a := testapp.New(t)
	short := a.Queue("billing")
	queues := map[string]*testapp.Ledger{short: testapp.NewLedger(), "sales." + short: testapp.NewLedger()}
	for queue, done := range queues {
		a.Handle(queue, 2, func(msg *message.Message) error {
			if string(msg.Payload) != queue {
				t.Errorf("%s received a message of %s", queue, msg.Payload)
			}
			if record, _ := retry.ReadRecord(msg.Metadata); record.Failures < 2 { // waits on both tiers
				return errDown
			}
			done.Add(msg.UUID)
			return nil
		})
	}
	a.Run()
	for queue := range queues {
		sent := testapp.Orders(each)
		for i := range sent {
			sent[i].Body = []byte(queue)
		}
		testapp.Send(t, "", queue, sent[:each/2]...)
		testapp.Send(t, a.Name+".return", "7s."+queue, sent[each/2:]...) // as a tier that has left the schedule
	}
	for queue, done := range queues {
		done.Wait(t, each, 60*time.Second)
		a.Settle(queue)
		assert.Empty(t, done.Twice())
	}
}

// TestConsumerGroupsStayApart: a fan-out to two groups, and one of them fails.
func TestConsumerGroupsStayApart(t *testing.T) {
	t.Parallel()
	const messages = 30
	done := map[string]*testapp.Ledger{"billing": testapp.NewLedger(), "shipping": testapp.NewLedger()}
	topic := broker.Name(t, "orders")
	var exchange string
	for group, ledger := range done {
		a := testapp.New(t, func(b *config.Config) {
			b.AMQP = amqp.NewDurablePubSubConfig(broker.URL(t), amqp.GenerateQueueNameTopicNameWithSuffix(group))
			b.Prefix = "retry_" + topic // shared, as in an app
		})
		broker.Clean(t, topic)
		exchange = topic
		calls := testapp.NewLedger()
		a.Handle(topic, 2, func(msg *message.Message) error {
			calls.Add(msg.UUID)
			if record, _ := retry.ReadRecord(msg.Metadata); group == "billing" && record.Failures < 2 {
				return errDown
			}
			ledger.Add(msg.UUID)
			return nil
		})
		a.Run()
		t.Cleanup(func() {
			want := map[string]int{"billing": 3, "shipping": 1}[group]
			for identity, count := range calls.Counts() {
				assert.Equal(t, want, count, "%s was handled %d times by %s", identity, count, group)
			}
		})
	}
	testapp.Send(t, exchange, "", testapp.Orders(messages)...)
	for _, ledger := range done {
		ledger.Wait(t, messages, 60*time.Second)
		assert.Empty(t, ledger.Twice())
	}
}

// TestForeignMessageDoesNotAffectOthers: one message of another user among a thousand ordinary failures in flight.
func TestForeignMessageDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	const good = 1000
	a := testapp.New(t, testapp.Schedule(100*time.Millisecond))
	queue := a.Queue("orders")
	user := broker.User(t, ".*", ".*", ".*")
	connection, err := amqp091.Dial(broker.WithUser(t, user, user))
	require.NoError(t, err)
	defer func() { _ = connection.Close() }()

	processed := testapp.NewLedger()
	a.Handle(queue, 16, func(msg *message.Message) error {
		if _, retried := retry.ReadRecord(msg.Metadata); !retried {
			return errDown
		}
		processed.Add(string(msg.Payload))
		return nil
	})
	a.Declare(queue)
	testapp.Send(t, "", queue, testapp.Orders(good/2)...)
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
		Body: []byte("foreign"), UserId: user, Expiration: "3600000",
		Headers: amqp091.Table{"CC": []any{queue + ".dead"}, "x-death": "forged"},
	})
	require.NoError(t, err)
	require.True(t, confirm.Wait())
	testapp.Send(t, "", queue, testapp.Orders(good)[good/2:]...)
	a.Run()
	processed.Wait(t, good+1, 60*time.Second)
	a.Settle(queue)
	assert.Empty(t, processed.Twice())
	assert.Zero(t, a.Log.Count("Cannot publish"), "the channel was not closed")
}
