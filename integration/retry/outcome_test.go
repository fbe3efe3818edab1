package retry_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
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

// TestEveryOutcomeOnABroker runs the rows of the outcome table in parallel. The message's body names the row.
func TestEveryOutcomeOnABroker(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	const fine, gone, dead = "processed", "settled", "dead"
	outcomes := map[string]string{
		"succeeds": fine, "fails once": fine, "panics once": fine, "exits once": fine, "times out once": fine, "requests a delay": fine,
		"fails always": dead, "fails permanently": dead, "panics always": dead, "acks itself": gone, "nacks itself once": fine,
	}
	calls, processed := testapp.NewLedger(), testapp.NewLedger()
	handler := a.AddConsumerHandler(a.Router, "billing", queue, func(msg *message.Message) error {
		body := string(msg.Payload)
		call := calls.Add(body)
		switch {
		case body == "fails once" && call == 1, body == "fails always":
			return errDown
		case body == "panics once" && call == 1, body == "panics always":
			panic(body)
		case body == "exits once" && call == 1:
			runtime.Goexit()
		case body == "times out once" && call == 1:
			<-msg.Context().Done()
			return msg.Context().Err()
		case body == "requests a delay" && call == 1:
			return backoff.RetryAfter(errDown, 250*time.Millisecond)
		case body == "fails permanently":
			return backoff.Permanent(errDown)
		case body == "acks itself":
			msg.Ack()
			return errDown
		case body == "nacks itself once" && call == 1:
			msg.Nack()
			return errDown
		}
		processed.Add(body)
		return nil
	}, retry.Options{Concurrency: 4})
	handler.AddMiddleware(watermillmw.Timeout(500 * time.Millisecond))
	a.Run()
	want := map[string]int{}
	var letters []string
	for body, outcome := range outcomes {
		testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(body)})
		switch outcome {
		case fine:
			want[body] = 1
		case dead:
			letters = append(letters, body)
		}
	}
	processed.Wait(t, len(want), 60*time.Second)
	assert.Equal(t, want, processed.Counts())
	reasons := map[string]retry.DeadReason{}
	for _, letter := range testapp.Take(t, queue+".dead", len(letters)) {
		reasons[string(letter.Body)] = retry.DeadReason(letter.Headers[recordkey.DeadReason].(string))
	}
	assert.Equal(t, map[string]retry.DeadReason{
		"fails always": retry.DeadReasonExhausted, "panics always": retry.DeadReasonExhausted,
		"fails permanently": retry.DeadReasonPermanent,
	}, reasons)
	assert.Equal(t, 1, calls.Counts()["acks itself"])
	assert.Equal(t, 2, calls.Counts()["nacks itself once"], "the broker redelivered the message")
	assert.Equal(t, 3, calls.Counts()["fails always"])
	broker.Eventually(t, 60*time.Second, func() bool {
		info, err := broker.Management(t).GetQueue("/", queue)
		return err == nil && info.Messages == 0
	}, "all queues are empty")
}

// TestShutdownsGiveMessagesBack: messages that are in flight at every shutdown are processed once after the restart. No
// failure is counted, and none is dead-lettered.
func TestShutdownsGiveMessagesBack(t *testing.T) {
	t.Parallel()
	const shutdowns, messages = 2, 4 // each costs one delivery or more, until watermill-amqp has stopped consuming
	for name, stop := range map[string]func(*message.Router, context.CancelFunc){
		"context cancelled": func(_ *message.Router, cancel context.CancelFunc) { cancel() },
		"router closed":     func(router *message.Router, _ context.CancelFunc) { _ = router.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := testapp.NewParts(t)
			queue := first.Queue("orders")
			first.Declare(queue)
			restarted := func(c *config.Config) { c.Prefix = first.Name }
			testapp.Send(t, "", queue, testapp.Orders(messages)...)
			for range shutdowns {
				a := testapp.NewParts(t, restarted)
				started := testapp.NewLedger()
				a.Handle(queue, messages, func(msg *message.Message) error {
					started.Add(msg.UUID)
					<-msg.Context().Done()
					return msg.Context().Err()
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- a.Router.Run(ctx) }()
				started.Wait(t, messages, time.Minute)
				stop(a.Router, cancel)
				require.NoError(t, <-done)
				require.NoError(t, a.Builder.Close())
				cancel()
				assert.Empty(t, a.Events(retry.Retried))
			}
			last := testapp.NewParts(t, restarted)
			processed := testapp.NewLedger()
			last.Handle(queue, 2, func(msg *message.Message) error {
				assert.NotContains(t, msg.Metadata, recordkey.Failures)
				processed.Add(msg.UUID)
				return nil
			})
			last.Run()
			processed.Wait(t, messages, time.Minute)
			assert.Empty(t, processed.Twice())
			assert.Zero(t, testapp.Depth(t, queue+".dead"))
		})
	}
}

// TestMessageThatTheAppCannotReadIsDeadLettered complete, and not redelivered in a loop.
func TestMessageThatTheAppCannotReadIsDeadLettered(t *testing.T) {
	t.Parallel()
	a := testapp.NewParts(t, func(b *config.Config) { b.AMQP.Marshaler = picky{} })
	queue := a.Queue("orders")
	done := testapp.NewLedger()
	a.Handle(queue, 1, done.Handle)
	a.Run()
	testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte("not JSON"), Headers: amqp091.Table{"n": int32(1)}},
		testapp.Orders(1)[0])
	letter := testapp.Take(t, queue+".dead", 1)[0]
	assert.Equal(t, "not JSON", string(letter.Body))
	assert.Equal(t, int32(1), letter.Headers["n"])
	assert.Equal(t, string(retry.DeadReasonUnmarshal), letter.Headers[recordkey.DeadReason])
	done.Wait(t, 1, 60*time.Second)
	assert.Zero(t, a.Log.Count("sending nack"))
}

type picky struct{ amqp.DefaultMarshaler }

func (p picky) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if string(d.Body) == "not JSON" {
		return nil, errDown
	}
	return p.DefaultMarshaler.Unmarshal(d)
}
