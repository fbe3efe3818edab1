package retry_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
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
