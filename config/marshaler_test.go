package config_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// Headers that the library adds to copies and hides from the app.
const (
	userIDHeader     = "retry_user_id"
	exchangeHeader   = "retry_exchange"
	routingKeyHeader = "retry_routing_key"
)

// around returns the builder's marshaler around an app's, or around the major's own.
func around(t testing.TB, app amqp.Marshaler) amqp.Marshaler {
	t.Helper()
	if app == nil {
		app = stock(nil)
	}
	return inMiddleware{builderOf(t, func(c *config.Config) { c.AMQP.Marshaler = app }).SubscriberConfig().Marshaler}
}

// inMiddleware reads messages as the retry middleware hands them on.
type inMiddleware struct{ amqp.Marshaler }

func (m inMiddleware) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := m.Marshaler.Unmarshal(d)
	if err == nil {
		delete(msg.Metadata, msgctx.BuilderKey)
	}
	return msg, err
}

func TestForeignMessageSurvivesRetries(t *testing.T) {
	marshaler := around(t, nil)
	delivery := configtest.Foreign()
	var first *message.Message
	for round := range 5 {
		msg, err := marshaler.Unmarshal(delivery)
		require.NoError(t, err)
		if round == 0 {
			first = msg.Copy()
			assert.Equal(t, "", msg.UUID)
		}
		assert.Equal(t, "abc", msg.Metadata["trace"])
		assert.Len(t, msg.Metadata, len(first.Metadata), "the app gets the same metadata every time")
		msg.Metadata["retry_failures"] = "1"
		p, err := marshaler.Marshal(msg)
		require.NoError(t, err)
		assert.NotContains(t, msg.Metadata["trace"], recordkey.Properties)

		want := amqp091.Publishing{
			Headers: amqp091.Table{
				"trace": "abc", "retry_record": "n1:1",
				userIDHeader: "shop", exchangeHeader: "shop", routingKeyHeader: "orders.eu",
				"retry_priority": byte(5),
			},
			ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp091.Persistent, CorrelationId: "c-1",
			ReplyTo: "replies", MessageId: "m-1", Timestamp: time.Unix(1700000001, 0), Type: "order", AppId: "web", Body: []byte("order 1"),
		}
		for key, value := range configtest.TypedHeaders {
			want.Headers[key] = value
		}
		require.Equal(t, want, p)
		delivery = configtest.ComeBack(p)
		delete(delivery.Headers, "retry_record")

		msg.Metadata[recordkey.DeadReason] = "exhausted"
		dead, err := marshaler.Marshal(msg)
		require.NoError(t, err)
		assert.EqualValues(t, 5, dead.Priority, "in a dead-letter queue nothing has to expire in order")
		assert.NotContains(t, dead.Headers, "retry_priority")
	}
}

// stockMarshalerIsAsAnyOther compares the stock marshaler, which is not called, with one that embeds it, which is.
func TestStockMarshalerIsAsAnyOther(t *testing.T) {
	plain, called := around(t, nil), around(t, struct{ amqp.Marshaler }{stock(nil)})
	const uuid = publisher.UUIDHeader
	tables := map[string]amqp091.Table{
		"none": nil, "uuid": {uuid: "a"}, "uuid of another type": {uuid: int64(1), "trace": "abc"}, "empty uuid": {uuid: "", "trace": ""},
		"texts": {uuid: "a", "trace": "abc", "copy": "a"}, "typed": {uuid: "a", "trace": "abc", "count": int64(1)},
		"of the broker": {uuid: "a", "x-first-death-queue": "q", "CC": "x"}, "of the library": {uuid: "a", "retry_exchange": "shop", "retry_publish_id": "1"},
		"record":        {uuid: "a", "retry_failures": "1", "retry_topic": "orders"},
		"folded":        {uuid: "a", "trace": "abc", "retry_record": "n1:1t6:orders"},
		"garbled":       {uuid: "a", "trace": "abc", "retry_record": "n9:1"},
		"both records":  {uuid: "a", "retry_failures": "7", "retry_handler": "h", "retry_record": "n1:1t6:orders"},
		"typed, folded": {uuid: "a", "count": int64(1), "retry_topic": int64(1), "retry_record": "n1:1t6:orders"},
		"dead":          {uuid: "a", "retry_failures": "3", "retry_dead_reason": "exhausted", "retry_record": "n1:1"},
	}
	for name, table := range tables {
		foreign := configtest.Foreign()
		foreign.Headers = maps.Clone(table)
		bare := amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: maps.Clone(table), RoutingKey: "orders", Body: []byte("{}")}
		back := configtest.ComeBack(amqp091.Publishing{Headers: table, Body: []byte("{}"), Priority: 3})
		for from, delivery := range map[string]amqp091.Delivery{"foreign": foreign, "bare": bare, "back": back} {
			t.Run(name+", "+from, func(t *testing.T) {
				before := maps.Clone(delivery.Headers)
				got, err := plain.Unmarshal(delivery)
				require.NoError(t, err)
				assert.Equal(t, before, delivery.Headers, "headers of the delivery stay")
				want, err := called.Unmarshal(delivery)
				require.NoError(t, err)
				assert.Equal(t, []any{want.UUID, want.Payload, want.Metadata}, []any{got.UUID, got.Payload, got.Metadata})
				retry.Record{Failures: 2, Topic: "orders", Reason: "down"}.Write(got.Metadata)
				want.Metadata = maps.Clone(got.Metadata)
				copied, err := plain.Marshal(got)
				require.NoError(t, err)
				wanted, err := called.Marshal(want)
				require.NoError(t, err)
				assert.Equal(t, wanted, copied)
			})
		}
	}
}

// propertyReader is a marshaler that reads AMQP properties of a delivery, as an app's own may.
type propertyReader struct{ amqp.Marshaler }

func (w propertyReader) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage("", d.Body)
	msg.Metadata["from"] = d.Exchange + "/" + d.RoutingKey + "/" + d.UserId
	if n, ok := d.Headers["int32"].(int32); ok && n == -70000 {
		msg.Metadata["read"] = "typed"
	}
	return msg, nil
}

func TestAppMarshalerGetsTheFirstDelivery(t *testing.T) {
	marshaler := around(t, propertyReader{stock(nil)})
	first, err := marshaler.Unmarshal(configtest.Foreign())
	require.NoError(t, err)
	assert.Equal(t, "shop/orders.eu/shop", first.Metadata["from"])
	assert.Equal(t, "typed", first.Metadata["read"], "the original delivery is tried first")
	p, err := marshaler.Marshal(first)
	require.NoError(t, err)
	second, err := marshaler.Unmarshal(configtest.ComeBack(p))
	require.NoError(t, err)
	assert.Equal(t, first.Metadata, second.Metadata)

	t.Run("from the default exchange", func(t *testing.T) {
		msg, err := marshaler.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, RoutingKey: "orders"})
		require.NoError(t, err)
		p, err := marshaler.Marshal(msg)
		require.NoError(t, err)
		back, err := marshaler.Unmarshal(configtest.ComeBack(p))
		require.NoError(t, err)
		assert.Equal(t, "/orders/", back.Metadata["from"])
	})
}

func TestOrdinaryMessageGetsNoMetadata(t *testing.T) {
	marshaler := around(t, nil)
	p, err := stock(nil).Marshal(message.NewMessage("uuid-1", []byte("order 1")))
	require.NoError(t, err)
	msg, err := marshaler.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: p.Headers, Body: p.Body, DeliveryMode: 2, RoutingKey: "orders"})
	require.NoError(t, err)
	assert.Equal(t, "uuid-1", msg.UUID)
	assert.Empty(t, msg.Metadata)
	again, err := marshaler.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, p, again)
}

func TestForgedHeadersAreIgnored(t *testing.T) {
	marshaler := around(t, propertyReader{stock(nil)})
	msg, err := marshaler.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: "shop", RoutingKey: "orders", Headers: amqp091.Table{
		userIDHeader: "admin", exchangeHeader: "amq.topic", routingKeyHeader: "all", recordkey.Properties: "forged",
		recordkey.UnmarshalError: "forged", "retry_publish_id": "forged",
	}})
	require.NoError(t, err)
	assert.Equal(t, "shop/orders/", msg.Metadata["from"])
	assert.NotContains(t, msg.Metadata, recordkey.UnmarshalError)
	assert.NotContains(t, msg.Metadata, "retry_publish_id")
	p, err := marshaler.Marshal(msg)
	require.NoError(t, err)
	assert.NotContains(t, p.Headers, userIDHeader)
}

func TestCopyIgnoresDangerousProperties(t *testing.T) {
	marshaler := around(t, stock(func(p amqp091.Publishing) amqp091.Publishing {
		p.UserId, p.Expiration, p.AppId, p.DeliveryMode = "shop", "1", "shop", amqp091.Transient
		return p
	}))
	msg, err := marshaler.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, RoutingKey: "orders"})
	require.NoError(t, err)
	p, err := marshaler.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Publishing{Headers: amqp091.Table{}, AppId: "shop", DeliveryMode: amqp091.Persistent}, p)
}

// broken is a marshaler that fails to read every message, with an error or a panic.
type broken struct {
	err    error
	panics any
}

func (b broken) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{}, errors.New("must not be called: this marshaler has not read the message")
}

func (b broken) Unmarshal(amqp091.Delivery) (*message.Message, error) {
	if b.panics != nil {
		panic(b.panics)
	}
	return nil, b.err
}

func TestUnreadableMessageIsMarked(t *testing.T) {
	for name, app := range map[string]amqp.Marshaler{"error": broken{err: errors.New("no JSON")}, "panic": broken{panics: "no JSON"}} {
		t.Run(name, func(t *testing.T) {
			marshaler := around(t, app)
			msg, err := marshaler.Unmarshal(configtest.Foreign())
			require.NoError(t, err, "after an error the broker would deliver it again without end")
			assert.Contains(t, msg.Metadata[recordkey.UnmarshalError], "no JSON")
			delete(msg.Metadata, recordkey.UnmarshalError) // as the middleware does
			p, err := marshaler.Marshal(msg)
			require.NoError(t, err)
			assert.Equal(t, "order 1", string(p.Body))
			assert.Equal(t, int32(-70000), p.Headers["int32"])
			assert.Equal(t, "application/json", p.ContentType)

			uuid := configtest.Foreign()
			uuid.Headers = amqp091.Table{publisher.UUIDHeader: "uuid-1"}
			msg, err = marshaler.Unmarshal(uuid)
			require.NoError(t, err)
			p, err = marshaler.Marshal(msg)
			require.NoError(t, err)
			assert.Equal(t, "uuid-1", p.Headers[publisher.UUIDHeader])
		})
	}
}
