package config_test

import (
	"crypto/tls"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// nowhere is an address at which no broker answers.
const nowhere = "amqp://shop:secret@127.0.0.1:1/"

func TestConnectRefuses(t *testing.T) {
	reconnect := func(initial, longest time.Duration) func(*amqp.Config) {
		return func(c *amqp.Config) {
			c.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: initial, BackoffMaxInterval: longest}
		}
	}
	for want, change := range map[string]func(*amqp.Config){
		"AMQP.Publish.Immediate is true":       func(c *amqp.Config) { c.Publish.Immediate = true },
		"AMQP.Consume.Qos.PrefetchSize is 9":   func(c *amqp.Config) { c.Consume.Qos.PrefetchSize = 9 },
		"AMQP.Consume.Qos.PrefetchCount is -1": func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = -1 },
		"PrefetchCount is 65536":               func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = 65_536 },
		"Consume.Consumer has 256 bytes":       func(c *amqp.Config) { c.Consume.Consumer = strings.Repeat("t", 256) },
		"Consume.Arguments":                    func(c *amqp.Config) { c.Consume.Arguments = amqp091.Table{"x": struct{}{}} },
		"AMQP.Connection: TLS: is set, but": func(c *amqp.Config) {
			c.Connection.TLSConfig = &tls.Config{ServerName: "broker"}
		},
		"BackoffMaxInterval: -1s":                reconnect(0, -time.Second),
		"BackoffInitialInterval: 2s, at most Ba": reconnect(2*time.Second, time.Second),
	} {
		_, err := config.Connect(configOf(func(c *config.Config) { change(&c.AMQP) }), nil)
		assert.ErrorContains(t, err, want)
	}
	// A handler with a Group needs no Queue.GenerateName: the configuration is valid, and no broker answers.
	own := configOf(func(c *config.Config) { c.AMQP = amqp.NewDurablePubSubConfig(nowhere, nil) })
	_, err := config.Connect(own, nil)
	require.ErrorContains(t, err, "cannot open the connection for consuming")
	assert.NotContains(t, err.Error(), "secret")
}

func TestEveryFieldIsDecided(t *testing.T) {
	configtest.FieldsAreDecided(t, reflect.TypeFor[amqp.Config]())
}

func TestReaderFaultsAtOnce(t *testing.T) {
	var none amqp.Config
	none.Consume.NoRequeueOnNack = true
	_, err := config.DeadLetterSubscriberConfig(none, "")
	for _, text := range []string{
		"AMQP.Connection.AmqpURI is empty", "AMQP.Marshaler is nil", "AMQP.Exchange.GenerateName is nil", "AMQP.Queue.GenerateName is nil",
		"NoRequeueOnNack is true",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = config.DeadLetterSubscriberConfig(amqp.NewNonDurableQueueConfig(uri), "")
	assert.NoError(t, err, "an app may have such a queue with Leave")
}

// TestReaderOfAGroup: the group names the queue, whatever Queue.GenerateName is.
func TestReaderOfAGroup(t *testing.T) {
	for _, own := range []string{"", "billing"} {
		app := pubSub(uri, own)
		if own == "" {
			app.Queue.GenerateName = nil
			_, err := config.DeadLetterSubscriberConfig(app, "")
			assert.ErrorContains(t, err, "AMQP.Queue.GenerateName is nil, and there is no group: give the Group of the handler")
			assert.NotContains(t, err.Error(), "\n", "one fault")
		}
		reader, err := config.DeadLetterSubscriberConfig(app, "shipping")
		require.NoError(t, err)
		assert.Equal(t, "orders_shipping.dead", reader.Queue.GenerateName("orders"))
	}
}

// unmarshal reads a message that has a record.
func unmarshal(t *testing.T, by amqp.Marshaler, exchange, key string, headers amqp091.Table) (*message.Message, retry.Record) {
	t.Helper()
	msg, err := by.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: exchange, RoutingKey: key, Headers: headers})
	require.NoError(t, err)
	record, known := retry.ReadRecord(msg.Metadata)
	require.True(t, known)
	return msg, record
}

// TestReaderNeedsOnlyTheApp: a reader without a builder reads the dead letters of every prefix as their original messages, those of
// the middleware and those of the broker. In a message that was sent to the queue by its name, headers with the library's names
// are not the library's.
func TestReaderNeedsOnlyTheApp(t *testing.T) {
	app := pubSub(uri, "billing")
	app.Consume.Exclusive = true
	app.Marshaler = propertyReader{stock(nil)}
	letters, err := config.DeadLetterSubscriberConfig(app, "")
	require.NoError(t, err)
	assert.Equal(t, "orders_billing.dead", letters.Queue.GenerateName("orders"))
	assert.Empty(t, letters.Exchange.GenerateName("orders"))
	assert.False(t, letters.Consume.Exclusive)
	assert.True(t, app.Consume.Exclusive, "the app's own is not changed")

	for exchange, key := range map[string]string{"retry": "dead.orders_billing", "shop.retry": "dead.orders_billing", "": "orders_billing.dead"} {
		for _, byBroker := range []bool{false, true} {
			headers := amqp091.Table{
				recordkey.Failures: "2", recordkey.Topic: "orders", recordkey.DeadReason: "exhausted",
				exchangeHeader: "shop", routingKeyHeader: "eu", userIDHeader: "shop-user",
			}
			want, from := retry.DeadReason("exhausted"), "shop/eu/shop-user"
			if exchange == "" {
				from = "/orders_billing.dead/"
			}
			if byBroker {
				headers["x-death"] = []any{amqp091.Table{"reason": "delivery_limit", "queue": "orders_billing"}}
				want = "delivery_limit"
			}
			msg, record := unmarshal(t, letters.Marshaler, exchange, key, headers)
			assert.Equal(t, want, record.DeadReason)
			assert.Equal(t, from, msg.Metadata["from"])
			assert.NotContains(t, msg.Metadata, exchangeHeader)
		}
	}
}

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
			msg, record := unmarshal(t, letters, "retry", "dead.orders", headers)
			assert.Equal(t, []any{test.topic, test.handler, test.failures}, []any{record.Topic, record.Handler, record.Failures})
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
	read := func(t *testing.T, headers amqp091.Table) retry.Record {
		_, record := unmarshal(t, letters, prefix, "dead.orders", headers)
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
	own := deadLettered(t, amqp091.Table{recordkey.Failures: "3"})
	own["x-death"] = deaths("delivery_limit") // the broker dead-letters it later
	for name, row := range map[string]struct {
		headers  amqp091.Table
		want     retry.DeadReason
		failures int
	}{
		"the middleware's own": {deadLettered(t, amqp091.Table{recordkey.Failures: "3", "x-death": deaths("expired"),
			"x-first-death-reason": "expired"}), retry.DeadReasonExhausted, 4},
		"the middleware's own, published again as it is": {own, "delivery_limit", 5},
		"the broker's, published again as it is": {deadLettered(t, amqp091.Table{"x-death": deaths("delivery_limit"),
			"x-last-death-reason": "delivery_limit"}), retry.DeadReasonExhausted, 4},
		// x-death of an orphan is that of its tier
		"redriven from the orphans, then dead": {deadLettered(t, amqp091.Table{recordkey.Failures: "3",
			"x-death": deaths("expired")[1:]}), retry.DeadReasonExhausted, 4},
	} {
		t.Run(name, func(t *testing.T) {
			record := read(t, row.headers)
			assert.Equal(t, []any{row.want, row.failures}, []any{record.DeadReason, record.Failures})
		})
	}
}
