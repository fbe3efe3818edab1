package builder_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/builder"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/topology"
)

// marshalerOf is the builder's around an app's, or around the stock one, which is the same in all majors here.
func marshalerOf(t testing.TB, app builder.Marshaler) builder.Marshaler {
	t.Helper()
	if app == nil {
		app = amqp.DefaultMarshaler{}
	}
	b, err := builder.New(builder.Config{
		App: builder.App{
			URI: "amqp://guest:guest@localhost:5672/", Marshaler: app, QueueOf: func(topic string) string { return topic },
			Queue: topology.Queue{Durable: true},
		},
		Config: topology.Config{Schedule: backoff.Schedule{time.Second}},
	})
	require.NoError(t, err)
	return b.Marshaler()
}

func TestForeignMessageSurvivesAnyNumberOfRetries(t *testing.T) {
	m := marshalerOf(t, nil)
	delivery := configtest.Foreign()
	var first *message.Message
	for round := range 5 {
		msg, err := m.Unmarshal(delivery)
		require.NoError(t, err)
		if round == 0 {
			first = msg.Copy()
			assert.Equal(t, "", msg.UUID)
		}
		assert.Equal(t, "abc", msg.Metadata["trace"])
		assert.Len(t, msg.Metadata, len(first.Metadata), "the app sees the same every time")
		msg.Metadata["retry_failures"] = "1"
		p, err := m.Marshal(msg)
		require.NoError(t, err)
		assert.NotContains(t, msg.Metadata["trace"], middleware.PropertiesKey)

		want := amqp091.Publishing{
			Headers: amqp091.Table{
				"trace": "abc", "retry_failures": "1",
				builder.UserIDHeader: "shop", builder.ExchangeHeader: "shop", builder.RoutingKeyHeader: "orders.eu",
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
		delete(delivery.Headers, "retry_failures")

		msg.Metadata[middleware.DeadReasonKey] = "exhausted"
		dead, err := m.Marshal(msg)
		require.NoError(t, err)
		assert.EqualValues(t, 5, dead.Priority, "where nothing has to expire in order")
		assert.NotContains(t, dead.Headers, "retry_priority")
	}
}

// bodyOnly is a marshaler that makes nothing of metadata.
type bodyOnly struct{}

func (bodyOnly) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload, MessageId: msg.UUID}, nil
}

func (bodyOnly) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return &message.Message{UUID: d.MessageId, Payload: d.Body}, nil
}

// stringifying is a marshaler that makes a string of every header.
type stringifying struct{ amqp.DefaultMarshaler }

func (s stringifying) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	headers := amqp091.Table{}
	for key, value := range d.Headers {
		headers[key] = fmt.Sprint(value)
	}
	d.Headers = headers
	return s.DefaultMarshaler.Unmarshal(d)
}

func TestRecordAndHeadersSurviveWhateverTheAppsMarshalerMakesOfThem(t *testing.T) {
	for name, app := range map[string]builder.Marshaler{"body only": bodyOnly{}, "stringifying": stringifying{}, "stock": amqp.DefaultMarshaler{}} {
		t.Run(name, func(t *testing.T) {
			m := marshalerOf(t, app)
			delivery := configtest.Foreign()
			for failures := range 4 {
				msg, err := m.Unmarshal(delivery)
				require.NoError(t, err)
				record, retried := middleware.ReadRecord(msg.Metadata)
				require.Equal(t, failures > 0, retried)
				require.Equal(t, failures, record.Failures)
				msg.Metadata[middleware.FailuresKey] = strconv.Itoa(failures + 1)
				msg.Metadata[middleware.TopicKey] = "orders"
				p, err := m.Marshal(msg)
				require.NoError(t, err)
				for key, value := range configtest.TypedHeaders {
					require.Equal(t, value, p.Headers[key], key)
				}
				require.Equal(t, "abc", p.Headers["trace"])
				delivery = configtest.ComeBack(p)
			}
		})
	}
}

// watchful reads what AMQP says of a delivery, as an app's own marshaler may.
type watchful struct{ amqp.DefaultMarshaler }

func (w watchful) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage("", d.Body)
	msg.Metadata["from"] = d.Exchange + "/" + d.RoutingKey + "/" + d.UserId
	if n, ok := d.Headers["int32"].(int32); ok && n == -70000 {
		msg.Metadata["read"] = "typed"
	}
	return msg, nil
}

func TestTheAppsMarshalerSeesARetriedMessageAsTheFirstTime(t *testing.T) {
	m := marshalerOf(t, watchful{})
	first, err := m.Unmarshal(configtest.Foreign())
	require.NoError(t, err)
	assert.Equal(t, "shop/orders.eu/shop", first.Metadata["from"])
	assert.Equal(t, "typed", first.Metadata["read"], "the original delivery is tried first")
	p, err := m.Marshal(first)
	require.NoError(t, err)
	second, err := m.Unmarshal(configtest.ComeBack(p))
	require.NoError(t, err)
	assert.Equal(t, first.Metadata, second.Metadata)

	t.Run("from the default exchange", func(t *testing.T) {
		msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, RoutingKey: "orders"})
		require.NoError(t, err)
		p, err := m.Marshal(msg)
		require.NoError(t, err)
		back, err := m.Unmarshal(configtest.ComeBack(p))
		require.NoError(t, err)
		assert.Equal(t, "/orders/", back.Metadata["from"])
	})
}

func TestOrdinaryMessageCarriesNothingExtra(t *testing.T) {
	m := marshalerOf(t, nil)
	p, err := amqp.DefaultMarshaler{}.Marshal(message.NewMessage("uuid-1", []byte("order 1")))
	require.NoError(t, err)
	msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: p.Headers, Body: p.Body, DeliveryMode: 2, RoutingKey: "orders"})
	require.NoError(t, err)
	assert.Equal(t, "uuid-1", msg.UUID)
	assert.Empty(t, msg.Metadata)
	again, err := m.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, p, again)
}

func TestPhantomIsAnError(t *testing.T) {
	_, err := marshalerOf(t, nil).Unmarshal(amqp091.Delivery{})
	assert.Error(t, err)
}

func TestForgedHeadersAreNotBelieved(t *testing.T) {
	m := marshalerOf(t, watchful{})
	msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Exchange: "shop", RoutingKey: "orders", Headers: amqp091.Table{
		builder.UserIDHeader: "admin", builder.ExchangeHeader: "amq.topic", builder.RoutingKeyHeader: "all", middleware.PropertiesKey: "forged",
		middleware.UnmarshalErrorKey: "forged", "retry_publish_id": "forged",
	}})
	require.NoError(t, err)
	assert.Equal(t, "shop/orders/", msg.Metadata["from"])
	assert.NotContains(t, msg.Metadata, middleware.UnmarshalErrorKey)
	assert.NotContains(t, msg.Metadata, "retry_publish_id")
	p, err := m.Marshal(msg)
	require.NoError(t, err)
	assert.NotContains(t, p.Headers, builder.UserIDHeader)
}

func TestWhatTheBrokerWouldCountOrRouteIsNotPublishedAgain(t *testing.T) {
	m := marshalerOf(t, nil)
	msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{
		"x-death": []any{amqp091.Table{"count": int64(99)}}, "x-first-death-queue": "other", "x-last-death-reason": "rejected",
		"x-delivery-count": int64(3), "x-acquired-count": int64(3), "CC": []any{"everybody"}, "BCC": []any{"nobody"},
		"_watermill_amqp_redelivered": "true", "x-mine": "stays",
	}})
	require.NoError(t, err)
	p, err := m.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Table{"x-mine": "stays"}, p.Headers)
}

func TestStringsOfTheBrokersAreNotPublishedAgainEither(t *testing.T) {
	m := marshalerOf(t, nil)
	msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, Headers: amqp091.Table{"x-first-death-queue": "other", "x-mine": "stays"}})
	require.NoError(t, err)
	p, err := m.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Table{"x-mine": "stays"}, p.Headers)
}

func TestWhatTheAppAddsToPublishingsCannotHurtACopy(t *testing.T) {
	m := marshalerOf(t, amqp.DefaultMarshaler{
		NotPersistentDeliveryMode: true,
		PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
			p.UserId, p.Expiration, p.AppId = "shop", "1", "shop"
			return p
		},
	})
	msg, err := m.Unmarshal(amqp091.Delivery{Acknowledger: configtest.Settled{}, RoutingKey: "orders"})
	require.NoError(t, err)
	p, err := m.Marshal(msg)
	require.NoError(t, err)
	assert.Equal(t, amqp091.Publishing{Headers: amqp091.Table{}, AppId: "shop", DeliveryMode: amqp091.Persistent}, p)
}

type broken struct{ panics bool }

func (b broken) Marshal(*message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{}, errors.New("must not be asked: it did not make the payload")
}

func (b broken) Unmarshal(amqp091.Delivery) (*message.Message, error) {
	if b.panics {
		panic("no JSON")
	}
	return nil, errors.New("no JSON")
}

func TestMessageThatTheAppCannotReadIsHandedOnMarked(t *testing.T) {
	for name, app := range map[string]builder.Marshaler{"error": broken{}, "panic": broken{panics: true}} {
		t.Run(name, func(t *testing.T) {
			m := marshalerOf(t, app)
			msg, err := m.Unmarshal(configtest.Foreign())
			require.NoError(t, err, "an error would bring it back at once and for ever")
			assert.Contains(t, msg.Metadata[middleware.UnmarshalErrorKey], "no JSON")
			delete(msg.Metadata, middleware.UnmarshalErrorKey) // as the middleware does
			p, err := m.Marshal(msg)
			require.NoError(t, err)
			assert.Equal(t, "order 1", string(p.Body))
			assert.Equal(t, int32(-70000), p.Headers["int32"])
			assert.Equal(t, "application/json", p.ContentType)

			uuid := configtest.Foreign()
			uuid.Headers = amqp091.Table{amqp.DefaultMessageUUIDHeaderKey: "uuid-1"}
			msg, err = m.Unmarshal(uuid)
			require.NoError(t, err)
			p, err = m.Marshal(msg)
			require.NoError(t, err)
			assert.Equal(t, "uuid-1", p.Headers[amqp.DefaultMessageUUIDHeaderKey])
		})
	}
}

func TestShrinkCutsTheRecordNeverTheMessage(t *testing.T) {
	record := func() amqp091.Table {
		return amqp091.Table{
			"app": strings.Repeat("a", 5000), "reason_poisoned": strings.Repeat("r", 1024), "retry_reason": strings.Repeat("r", 1000) + "éé",
			"retry_error_type": "*errors.errorString", "retry_handler": "billing", "retry_topic": "orders", "retry_failures": "3",
			"retry_first_failed_at": "x", "retry_last_failed_at": "x", "retry_due_at": "x",
		}
	}
	p := amqp091.Publishing{Headers: record()}
	builder.Shrink(&p, 100)
	assert.NotContains(t, p.Headers, "reason_poisoned")
	assert.Len(t, p.Headers["retry_reason"], 1004)

	p.Headers = record()
	builder.Shrink(&p, 1024+15+6+1)
	assert.Equal(t, strings.Repeat("r", 1000)+"é", p.Headers["retry_reason"], "whole characters")

	p.Headers = record()
	builder.Shrink(&p, 1<<20)
	assert.Equal(t, amqp091.Table{"app": strings.Repeat("a", 5000), "retry_topic": "orders", "retry_failures": "3"}, p.Headers)
}

func TestHeadersOfEveryTypeKeepIt(t *testing.T) {
	decoded, err := builder.RoundTrip(configtest.TypedHeaders)
	require.NoError(t, err)
	assert.Equal(t, configtest.TypedHeaders, decoded)
}

func FuzzProperties(f *testing.F) {
	f.Add("\x01S\x05hello")
	f.Add("\rF\x01\x01aA\x02V\xff")
	f.Add(strings.Repeat("\rA\x01", 100))
	f.Fuzz(func(t *testing.T, encoded string) { _ = builder.Decode(encoded) })
}

func FuzzMarshaler(f *testing.F) {
	f.Add("trace", "abc", []byte("body"), int64(5), "retry.return", "1s.orders")
	f.Add("x-death", "\xff", []byte{}, int64(-1), "", "")
	f.Add("retry_failures", "-1", []byte(nil), int64(1<<62), "retry.return", ".")
	m := marshalerOf(f, nil)
	f.Fuzz(func(t *testing.T, key, value string, body []byte, number int64, exchange, routingKey string) {
		delivery := amqp091.Delivery{
			Acknowledger: configtest.Settled{}, Body: body, Exchange: exchange, RoutingKey: routingKey,
			Headers: amqp091.Table{key: value, key + "n": number, key + "t": amqp091.Table{key: []any{number, body}}},
		}
		msg, err := m.Unmarshal(delivery)
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		if string(p.Body) != string(body) {
			t.Fatalf("body %q became %q", body, p.Body)
		}
	})
}
