package config_test

import (
	"maps"
	"testing"
	"time"

	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestWhereDeadLettersFailed: topic and handler of a dead letter that the broker made are those of its last failure, if the message
// has them. Readers of Watermill's poison queue find the topic under its key.
func TestWhereDeadLettersFailed(t *testing.T) {
	letters := reader(t, configOf().AMQP).Marshaler
	for name, test := range map[string]struct {
		headers        amqp091.Table
		topic, handler string
		failures       int
		poisonedTopic  string
	}{
		"a failure record": {
			headers: amqp091.Table{recordkey.Failures: "3", recordkey.Topic: "orders", recordkey.Handler: "billing"},
			topic:   "orders", handler: "billing", failures: 4, poisonedTopic: "orders",
		},
		"a record with a garbled count": {
			headers: amqp091.Table{recordkey.Failures: "three", recordkey.Topic: "orders", recordkey.Handler: "billing"},
			topic:   "orders", handler: "billing", failures: 1, poisonedTopic: "orders",
		},
		"only the keys of a poison queue": {
			headers:  amqp091.Table{poison.PoisonedTopicKey: "orders"},
			failures: 1, poisonedTopic: "orders",
		},
		"neither": {failures: 1},
	} {
		t.Run(name, func(t *testing.T) {
			headers := amqp091.Table{"x-death": []any{amqp091.Table{"reason": "delivery_limit", "queue": "orders", "time": time.Unix(1, 0)}}}
			maps.Copy(headers, test.headers)
			msg, err := letters.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: "retry", RoutingKey: "dead.orders", Headers: headers})
			require.NoError(t, err)
			record, known := retry.ReadRecord(msg.Metadata)
			require.True(t, known)
			assert.Equal(t, test.topic, record.Topic)
			assert.Equal(t, test.handler, record.Handler)
			assert.Equal(t, test.failures, record.Failures)
			assert.Equal(t, record.Reason, msg.Metadata[poison.ReasonForPoisonedKey])
			poisoned, found := msg.Metadata[poison.PoisonedTopicKey]
			assert.Equal(t, test.poisonedTopic, poisoned)
			assert.Equal(t, test.poisonedTopic != "", found, "there is no empty key")
		})
	}
}

// TestDeadReasons: the dead reason is that of the last dead-lettering, by the broker or by the middleware. Older reasons in the
// message do not count.
func TestDeadReasons(t *testing.T) {
	for _, prefix := range []string{"retry", "shop.retry"} { // the reader's is the default one
		t.Run(prefix, func(t *testing.T) { deadReasonsOf(t, prefix) })
	}
}

func deadReasonsOf(t *testing.T, prefix string) {
	writer := builderOf(t, func(c *config.Config) { c.Prefix = prefix })
	app, letters := writer.SubscriberConfig().Marshaler, reader(t, configOf().AMQP).Marshaler
	deaths := func(reason string) []any {
		return []any{
			amqp091.Table{"reason": reason, "queue": "orders", "time": time.Unix(1700000002, 0)},
			amqp091.Table{"reason": "expired", "queue": "orders.retry.1s", "time": time.Unix(1700000001, 0)},
		}
	}
	letter := func(headers amqp091.Table) amqp091.Delivery {
		return amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: prefix, RoutingKey: "dead.orders", Headers: headers}
	}
	read := func(t *testing.T, headers amqp091.Table) retry.Record {
		msg, err := letters.Unmarshal(letter(headers))
		require.NoError(t, err)
		record, known := retry.ReadRecord(msg.Metadata)
		require.True(t, known)
		return record
	}
	// deadLettered returns the headers of the dead letter that the middleware publishes for a message with these headers.
	deadLettered := func(t *testing.T, headers amqp091.Table) amqp091.Table {
		msg, err := app.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: prefix + ".return", RoutingKey: "1s.orders", Headers: headers})
		require.NoError(t, err)
		msg.Metadata[recordkey.Failures], msg.Metadata[recordkey.DeadReason] = "4", string(retry.DeadReasonExhausted)
		p, err := app.Marshal(msg)
		require.NoError(t, err)
		return p.Headers
	}
	t.Run("the broker's, with an older reason in the message", func(t *testing.T) {
		record := read(t, amqp091.Table{recordkey.DeadReason: "older", "x-death": deaths("delivery_limit")})
		assert.Equal(t, retry.Record{
			Failures: 1, DeadReason: "delivery_limit", Reason: "the broker dead-lettered it from queue orders: delivery_limit",
			FirstFailedAt: time.Unix(1700000002, 0).UTC(), LastFailedAt: time.Unix(1700000002, 0).UTC(),
		}, record)
	})
	t.Run("the middleware's own", func(t *testing.T) {
		headers := deadLettered(t, amqp091.Table{recordkey.Failures: "3", "x-death": deaths("expired"), "x-first-death-reason": "expired"})
		record := read(t, headers)
		assert.Equal(t, retry.DeadReasonExhausted, record.DeadReason)
		assert.Equal(t, 4, record.Failures)
	})
	t.Run("the middleware's own, published again as it is", func(t *testing.T) {
		headers := deadLettered(t, amqp091.Table{recordkey.Failures: "3"})
		headers["x-death"] = deaths("delivery_limit") // the broker dead-letters it later
		record := read(t, headers)
		assert.EqualValues(t, "delivery_limit", record.DeadReason)
		assert.Equal(t, 5, record.Failures)
	})
	t.Run("the broker's, published again as it is", func(t *testing.T) {
		record := read(t, deadLettered(t, amqp091.Table{"x-death": deaths("delivery_limit"), "x-last-death-reason": "delivery_limit"}))
		assert.Equal(t, retry.DeadReasonExhausted, record.DeadReason)
	})
	t.Run("redriven from the orphans, then dead", func(t *testing.T) { // x-death of an orphan is that of its tier
		record := read(t, deadLettered(t, amqp091.Table{recordkey.Failures: "3", "x-death": deaths("expired")[1:]}))
		assert.Equal(t, retry.DeadReasonExhausted, record.DeadReason)
	})
}
