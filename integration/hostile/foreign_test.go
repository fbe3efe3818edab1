package hostile_test

import (
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestPropertiesOfForeignMessages: each property survives every retry and is in the dead letter.
func TestPropertiesOfForeignMessages(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"quorum", "classic with priorities"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := testapp.New(t, func(b *config.Config) {
				if kind != "quorum" {
					b.AMQP.Queue.Arguments = amqp091.Table{"x-max-priority": int32(9)}
				}
			})
			queue, copied, blind := a.Queue("orders"), a.Queue("copied"), a.Queue("blind")
			channel := broker.Channel(t)
			for _, other := range []string{copied, blind} {
				_, err := channel.QueueDeclare(other, true, false, false, false, amqp091.Table{amqp091.QueueTypeArg: "classic"})
				require.NoError(t, err)
			}
			sent := map[string]amqp091.Publishing{
				"bare":         {},
				"priority":     {Priority: 7},
				"priority 255": {Priority: 255},
				"expiration":   {Expiration: "60000"},
				"cc":           {Headers: amqp091.Table{"CC": []any{copied}}},
				"bcc":          {Headers: amqp091.Table{"BCC": []any{blind}}},
				"to itself":    {Headers: amqp091.Table{"CC": []any{queue}}}, // routed once
				"user":         {UserId: "guest"},
				"all": {
					ContentType: "text/plain", ContentEncoding: "identity", CorrelationId: "c", ReplyTo: "r", MessageId: "m",
					Timestamp: time.Unix(1_700_000_000, 0), Type: "t", AppId: "a", Priority: 1,
				},
				"forged x-death": {Headers: amqp091.Table{"x-death": []any{
					amqp091.Table{"count": int64(math.MaxInt64), "reason": "expired", "queue": queue, "exchange": "",
						"routing-keys": []any{queue}},
					amqp091.Table{"count": int64(1), "reason": "expired", "queue": queue + "." + a.Name + ".100ms",
						"exchange": a.Name},
				}}},
				"garbled x-death": {Headers: amqp091.Table{"x-death": []any{amqp091.Table{"count": "many"}, amqp091.Table{}}}},
				"x-death of text": {Headers: amqp091.Table{"x-death": "death", "x-first-death-queue": queue,
					"x-last-death-reason": "maxlen"}},
				"delivery count": {Headers: amqp091.Table{"x-delivery-count": int64(1000), "x-acquired-count": int64(-1)}},
				"our own headers": {Headers: amqp091.Table{"retry_user_id": "root", "retry_exchange": "nowhere",
					"retry_routing_key": "x", "retry_publish_id": "1"}},
				"our own encoding": {Headers: amqp091.Table{"retry_properties": "\x0e\x74\x01 garbled",
					"retry_unmarshal_error": "forged"}},
			}
			calls := testapp.NewLedger()
			a.Handle(queue, 4, func(msg *message.Message) error { calls.Add(string(msg.Payload)); return errDown })
			a.Run()
			for identity, p := range sent {
				p.Body = []byte(identity)
				testapp.Send(t, "", queue, p)
			}
			got := letters(t, queue, len(sent))
			assert.Equal(t, keys(sent), keys(got))
			same(t, 3, calls.Counts(), keys(sent)...)
			for identity, letter := range got {
				exhausted(t, letter, "3")
				want := sent[identity]
				assert.Equal(t, []any{
					want.ContentType, want.ContentEncoding, want.CorrelationId, want.ReplyTo, want.MessageId, want.Timestamp.Unix(), want.Type,
					want.AppId, want.Priority, "", "",
				}, []any{
					letter.ContentType, letter.ContentEncoding, letter.CorrelationId, letter.ReplyTo, letter.MessageId, letter.Timestamp.Unix(),
					letter.Type, letter.AppId, letter.Priority, letter.Expiration, letter.UserId,
				}, identity)
				for _, key := range []string{"CC", "BCC", "retry_properties", "retry_unmarshal_error"} {
					assert.NotContains(t, letter.Headers, key, identity)
				}
			}
			assert.Equal(t, "guest", got["user"].Headers["retry_user_id"])
			assert.NotContains(t, got["our own headers"].Headers, "retry_user_id")
			for other, identity := range map[string]string{copied: "cc", blind: "bcc"} {
				assert.Equal(t, identity, string(testapp.Take(t, other, 1)[0].Body))
				assert.Zero(t, testapp.Depth(t, other), "the original message is routed there once, and no retry is")
			}
			assert.Empty(t, a.Events(retry.GivenBack))
			assert.Zero(t, a.Log.Count("sending nack"))
		})
	}
}
