package headers_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

const history = `{"times":1,"redrives":[{"by":"ann@ops"}]}`

// bare knows no metadata: it drops each header but the UUID's.
type bare struct{}

func (bare) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload, Headers: amqp091.Table{publisher.UUIDHeader: msg.UUID}}, nil
}

func (bare) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	uuid, _ := d.Headers[publisher.UUIDHeader].(string)
	return message.NewMessage(uuid, d.Body), nil
}

// texts makes a text of each header.
type texts struct{ textual }

func (m texts) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	table := amqp091.Table{}
	for key, value := range d.Headers {
		table[key] = fmt.Sprint(value)
	}
	d.Headers = table
	return m.textual.Unmarshal(d)
}

// The record, headers of all types and the history of redrives stay with the message on its tiers and in its dead letter,
// whatever the app's marshaler keeps.
func TestTheHistorySurvivesTheMarshaler(t *testing.T) {
	t.Parallel()
	for name, app := range map[string]app.Marshaler{
		"drops metadata": bare{}, "keeps it": textual{}, "makes texts": texts{}, "the stock one": app.Plain{Marshaler: textual{}, UUIDKey: publisher.UUIDHeader},
	} {
		for _, why := range []retry.DeadReason{"", retry.DeadReasonExhausted} {
			m := headers.New(app, naming.Default)
			msg, err := m.Unmarshal(amqp091.Delivery{
				Acknowledger: configtest.Settled{}, RoutingKey: "orders",
				Headers: amqp091.Table{publisher.UUIDHeader: "uuid-1", recordkey.Redriven: history, "number": int64(7)},
			})
			require.NoError(t, err, name)
			assert.Equal(t, history, msg.Metadata[recordkey.Redriven], name)
			_, retried := retry.ReadRecord(msg.Metadata)
			assert.False(t, retried, "%s: it has no record", name)

			retry.Record{Failures: 1, Topic: "orders", DeadReason: why}.Write(msg.Metadata)
			p, err := m.Marshal(msg)
			require.NoError(t, err, name)
			assert.Equal(t, history, p.Headers[recordkey.Redriven], "%s %s", name, why)
			assert.Equal(t, int64(7), p.Headers["number"], "%s %s", name, why)

			back := configtest.ComeBack(p)
			reader := m
			if why != "" {
				reader = headers.NewDeadLetters(app)
				back.Exchange, back.RoutingKey = "retry", "dead.orders"
			}
			again, err := reader.Unmarshal(back)
			require.NoError(t, err, name)
			assert.Equal(t, history, again.Metadata[recordkey.Redriven], "%s %s", name, why)
			record, _ := retry.ReadRecord(again.Metadata)
			assert.NotZero(t, record.Failures, name)
			if why == "" {
				p, err = m.Marshal(again)
				require.NoError(t, err, name)
				assert.Equal(t, int64(7), p.Headers["number"], "%s, after one more failure", name)
			}
		}
	}
}

// A copy that is too large loses its history before its record, and the record before any header of the app.
func TestShrinkRemovesTheHistoryFirst(t *testing.T) {
	t.Parallel()
	headersOf := func() amqp091.Table {
		return amqp091.Table{
			"app": strings.Repeat("a", 100), recordkey.Redriven: history, "retry_reason": "down", "retry_failures": "3", "retry_topic": "orders",
		}
	}
	for name, folded := range map[string]bool{"a dead letter": false, "one that waits": true} {
		p := amqp091.Publishing{Headers: headersOf()}
		if folded {
			p.Headers = headers.Fold(p.Headers)
		} else {
			p.Headers[recordkey.DeadReason] = "exhausted"
		}
		headers.Shrink(&p, 1)
		assert.NotContains(t, p.Headers, recordkey.Redriven, name)
		left := headers.Unfold(p.Headers)
		assert.Equal(t, "down", left["retry_reason"], name)
		headers.Shrink(&p, 1<<20)
		assert.Contains(t, p.Headers, "app", name)
	}
}
