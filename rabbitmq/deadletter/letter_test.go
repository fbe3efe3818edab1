package deadletter

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	uuid = "0193a5d2-8f5c-7c1e-9a40-1f7c2f9d0001"
	// folded is the record of a message that waits, as one header: two failures on the topic "orders".
	folded = "n1:2t6:ordersl24:2026-01-02T03:04:05.000Zf24:2026-01-02T03:00:00.000Zh7:billingr4:down"
)

var (
	firstFailed = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	lastFailed  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	died        = time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)
)

// everyType has a header of each AMQP field type, as amqp091-go reads them.
func everyType() amqp091.Table {
	return amqp091.Table{
		"nil": nil, "bool": true, "byte": byte(200), "int8": int8(-3), "int16": int16(-300), "uint16": uint16(65535),
		"int32": int32(-70000), "uint32": uint32(4e9), "int64": int64(1)<<62 + 1, "float32": float32(1.1), "float64": 0.1,
		"decimal": amqp091.Decimal{Scale: 2, Value: -314}, "time": time.Unix(1700000000, 0), "string": "text", "bytes": []byte{0, 255},
		"array": []any{nil, int8(1), "a", []any{true}, amqp091.Table{"deep": []byte("x")}}, "table": amqp091.Table{"in": amqp091.Table{"t": int16(1)}},
		"latin1": "caf\xe9", "\xff": "a name that is not UTF-8",
	}
}

// deathOf is x-death as the broker writes it.
func deathOf(queue, reason, exchange, key string) []any {
	return []any{
		amqp091.Table{"count": int64(1), "exchange": exchange, "queue": queue, "reason": reason, "routing-keys": []any{key}, "time": died.Local()},
		amqp091.Table{"count": int64(1), "exchange": "older", "queue": "older", "reason": "rejected", "routing-keys": []any{"older"}, "time": died.Local()},
	}
}

// libraryHeaders are those of a dead letter of the middleware.
func libraryHeaders() amqp091.Table {
	metadata := message.Metadata{}
	retry.Record{
		Failures: 3, FirstFailedAt: firstFailed, LastFailedAt: lastFailed, Reason: "down", ErrorType: "*net.OpError", Topic: "orders",
		Handler: "billing", Subscriber: "amqp.Subscriber", DeadReason: retry.DeadReasonExhausted,
	}.Write(metadata)
	table := amqp091.Table{
		"_watermill_message_uuid": uuid, "trace": "abc", "number": int64(7), "retry_publish_id": "p1",
		"retry_exchange": "shop", "retry_routing_key": "eu.orders", "retry_user_id": "web",
	}
	for key, value := range metadata {
		table[key] = value
	}
	return table
}

func TestReadALetterOfTheLibrary(t *testing.T) {
	d := &amqp091.Delivery{
		Headers: libraryHeaders(), Exchange: "retry", RoutingKey: "dead.orders", Priority: 4, ContentType: "application/json", CorrelationId: "c",
		MessageId: "m", Timestamp: firstFailed, DeliveryMode: 2, Body: []byte("{}"),
	}
	l := read(d, "orders.dead", naming.Default)
	assert.Equal(t, &letters.Letter{
		ID: uuid, Queue: "orders.dead", Target: "orders", Kind: letters.Library,
		Record: retry.Record{
			Failures: 3, FirstFailedAt: firstFailed, LastFailedAt: lastFailed, Reason: "down", ErrorType: "*net.OpError", Topic: "orders",
			Handler: "billing", Subscriber: "amqp.Subscriber", DeadReason: retry.DeadReasonExhausted,
		},
		Metadata: message.Metadata{"trace": "abc"}, Headers: map[string]any{"number": int64(7)}, Payload: []byte("{}"),
		Properties: map[string]string{
			"content_type": "application/json", "correlation_id": "c", "message_id": "m", "timestamp": "2026-01-02T03:00:00Z", "priority": "4",
			"delivery_mode": "2", "user_id": "web", "exchange": "shop", "routing_key": "eu.orders",
		},
	}, l)
	assert.Equal(t, lastFailed, l.DeadAt())
}

func TestReadALetterOfTheBroker(t *testing.T) {
	d := &amqp091.Delivery{Exchange: "retry", RoutingKey: "dead.orders", UserId: "web", Headers: amqp091.Table{
		"_watermill_message_uuid": uuid, "x-death": deathOf("orders", "delivery_limit", "shop", "eu"), "x-delivery-count": int64(3),
		"x-first-death-queue": "orders",
	}}
	l := read(d, "orders.dead", naming.Default)
	assert.Equal(t, letters.Broker, l.Kind)
	assert.Equal(t, "orders", l.Target)
	assert.Equal(t, retry.Record{
		Failures: 1, FirstFailedAt: died, LastFailedAt: died, DeadReason: "delivery_limit",
		Reason: "the broker dead-lettered it from queue orders: delivery_limit",
	}, l.Record)
	assert.Empty(t, l.Metadata)
	assert.Empty(t, l.Headers, "x-death is what the record shows")
	assert.Equal(t, map[string]string{"exchange": "shop", "routing_key": "eu", "user_id": "web"}, l.Properties)

	d.Headers["retry_record"], d.Headers["retry_priority"] = folded, byte(5)
	d.Headers["x-death"] = deathOf("orders", "delivery_limit", "retry.return", "10s.orders")
	l = read(d, "orders.dead", naming.Default)
	assert.Equal(t, 3, l.Record.Failures, "it had failed twice before")
	assert.Equal(t, firstFailed, l.Record.FirstFailedAt)
	assert.Equal(t, died, l.Record.LastFailedAt)
	assert.Equal(t, "billing", l.Record.Handler)
	assert.Equal(t, map[string]string{"routing_key": "orders", "user_id": "web"}, l.Properties,
		"the default exchange; any publisher could have written the header of the priority")
	assert.Empty(t, l.Metadata, "the record is no metadata")

	d.Headers["x-death"] = deathOf("orders.order.3", "delivery_limit", "orders.order", "3")
	assert.Equal(t, map[string]string{"routing_key": "orders", "user_id": "web"},
		read(d, "orders.dead", naming.Default).Properties, "it came from a partition")

	assert.Empty(t, read(d, "parking", naming.Default).Target, "a header names no target")
}

func TestReadALetterOfAPoisonQueue(t *testing.T) {
	d := &amqp091.Delivery{RoutingKey: "poison", Headers: amqp091.Table{
		"_watermill_message_uuid": uuid, "reason_poisoned": "no money", "topic_poisoned": "orders", "handler_poisoned": "billing",
		"subscriber_poisoned": "amqp.Subscriber", "trace": "abc",
	}}
	want := retry.Record{Reason: "no money", Topic: "orders", Handler: "billing", Subscriber: "amqp.Subscriber"}
	l := read(d, "poison", naming.Default)
	assert.Equal(t, letters.Poison, l.Kind)
	assert.Equal(t, "orders", l.Target)
	assert.Equal(t, want, l.Record)
	assert.Equal(t, message.Metadata{"trace": "abc"}, l.Metadata)
	assert.True(t, l.DeadAt().IsZero())

	assert.Equal(t, "sales", read(d, "sales.dead", naming.Default).Target, "the name of the queue decides")

	d.Headers["retry_failures"], d.Headers["retry_topic"], d.Headers["retry_reason"] = "2", "orders", "older"
	l = read(d, "poison", naming.Default)
	assert.Equal(t, letters.Poison, l.Kind, "it was retried before")
	want.Failures = 2
	assert.Equal(t, want, l.Record)
}

func TestReadAnOrphan(t *testing.T) {
	for key, target := range map[string]string{
		"10s.orders": "orders", "10s.sales.orders": "sales.orders", "inbox.orders": "orders", "orders": "", "": "", "10s.": "", "retry.orphans": "",
	} {
		d := &amqp091.Delivery{Exchange: "retry.return", RoutingKey: key, Headers: amqp091.Table{
			"_watermill_message_uuid": uuid, "retry_record": folded, "x-death": deathOf("orders.retry.10s", "expired", "retry", key),
			"reason_poisoned": "forged", "topic_poisoned": "forged", "retry_topic": "forged",
		}}
		l := read(d, "retry.orphans", naming.Default)
		assert.Equal(t, letters.Orphan, l.Kind, key)
		assert.Equal(t, target, l.Target, key)
		assert.Equal(t, 2, l.Record.Failures, key)
		assert.Equal(t, "orders", l.Record.Topic, "the folded record has precedence")
		assert.Equal(t, "down", l.Record.Reason, key)
		assert.Equal(t, target, l.Properties["routing_key"], key)
	}
	d := &amqp091.Delivery{Exchange: "retry.return", RoutingKey: "10s.orders"}
	assert.Equal(t, letters.Unknown, read(d, "retry.orphans", "other").Kind, "of another prefix")
	assert.Equal(t, letters.Orphan, read(d, "other.orphans", "other").Kind)
}

func TestReadALetterWithoutAnOwner(t *testing.T) {
	d := &amqp091.Delivery{Exchange: "shop", RoutingKey: "eu", Body: []byte("a"), Headers: amqp091.Table{"trace": "abc", "_watermill_message_uuid": int8(1)}}
	l := read(d, "anything", naming.Default)
	assert.Equal(t, letters.Unknown, l.Kind)
	assert.Empty(t, l.Target)
	assert.Zero(t, l.Record)
	assert.Equal(t, map[string]string{"exchange": "shop", "routing_key": "eu"}, l.Properties)
	assert.Equal(t, map[string]any{"_watermill_message_uuid": int8(1)}, l.Headers, "no UUID")
	assert.Regexp(t, `^#[0-9a-f]{16}$`, l.ID)

	assert.Equal(t, "orders", read(d, "orders.dead", naming.Default).Target)
	empty := read(&amqp091.Delivery{}, "anything", naming.Default)
	assert.Equal(t, letters.Unknown, empty.Kind)
	assert.Empty(t, empty.Metadata)
	assert.Empty(t, empty.Headers)
	assert.Empty(t, empty.Properties)
}

func TestTheIDOfAMessageStays(t *testing.T) {
	d := &amqp091.Delivery{Body: []byte("a"), Headers: everyType(), Exchange: "shop", RoutingKey: "eu"}
	first := read(d, "orders.dead", naming.Default)
	again := &amqp091.Delivery{Body: []byte("a"), Headers: everyType(), RoutingKey: "orders", Redelivered: true}
	again.Headers["x-death"], again.Headers["retry_redriven"] = deathOf("orders", "expired", "", ""), `{"times":1,"redrives":null}`
	again.Headers["retry_dead_reason"] = "exhausted"
	assert.Equal(t, first.ID, read(again, "orders.dead", naming.Default).ID)

	again.Headers["int8"] = int16(-3)
	assert.NotEqual(t, first.ID, read(again, "orders.dead", naming.Default).ID, "another type")
	again.Headers["int8"], again.Body = int8(-3), []byte("b")
	assert.NotEqual(t, first.ID, read(again, "orders.dead", naming.Default).ID, "another body")
	again.MessageId = "m-1"
	assert.Equal(t, "m-1", read(again, "orders.dead", naming.Default).ID)
	again.Headers["_watermill_message_uuid"] = ""
	assert.Equal(t, "m-1", read(again, "orders.dead", naming.Default).ID)
	again.Headers["_watermill_message_uuid"] = uuid
	assert.Equal(t, uuid, read(again, "orders.dead", naming.Default).ID)
}

// A letter that was cut to fit into a frame may have its dead reason only.
func TestReadWhatIsLeftOfARecord(t *testing.T) {
	d := &amqp091.Delivery{Exchange: "retry", RoutingKey: "dead.orders", Headers: amqp091.Table{"retry_dead_reason": "too_large"}}
	l := read(d, "orders.dead", naming.Default)
	assert.Equal(t, letters.Library, l.Kind)
	assert.Equal(t, retry.Record{DeadReason: retry.DeadReasonTooLarge}, l.Record)

	d.Headers = libraryHeaders()
	d.Headers["retry_failures"] = "many"
	l = read(d, "orders.dead", naming.Default)
	assert.Equal(t, retry.Record{
		Reason: "down", ErrorType: "*net.OpError", Topic: "orders", Handler: "billing", Subscriber: "amqp.Subscriber", DeadReason: retry.DeadReasonExhausted,
	}, l.Record, "garbled")
}

func TestHostileHeadersNameNoTarget(t *testing.T) {
	huge := make([]any, 20000)
	for i := range huge {
		huge[i] = amqp091.Table{"queue": strings.Repeat("q", 10)}
	}
	for name, headers := range map[string]amqp091.Table{
		"x-death: text": {"x-death": "orders"}, "x-death: empty": {"x-death": []any{}}, "x-death: of texts": {"x-death": []any{"orders"}},
		"x-death: other types": {"x-death": []any{amqp091.Table{"reason": int8(1), "queue": []byte("a"), "time": "now", "exchange": 1.5, "routing-keys": "a"}}},
		"x-death: no keys":     {"x-death": []any{amqp091.Table{"routing-keys": []any{}}}}, "x-death: huge": {"x-death": huge},
		"record: other types": {"retry_record": int8(1), "retry_failures": int64(1), "retry_dead_reason": []byte("x"), "reason_poisoned": nil},
		"record: folded":      {"retry_record": "n99999999999999999999:1"}, "record: negative": {"retry_failures": "-1", "retry_dead_reason": "a\x00b\xff"},
		"history": {"retry_redriven": strings.Repeat("[", 1000)}, "transport": {"retry_priority": "9", "retry_exchange": int8(1), "retry_user_id": nil},
		"every type": everyType(),
	} {
		d := &amqp091.Delivery{Headers: headers, RoutingKey: "10s.forged"}
		for queue, target := range map[string]string{"orders.dead": "orders", "anything": "", "retry.orphans": "forged"} {
			l := read(d, queue, naming.Default)
			assert.Equal(t, target, l.Target, "%s in %s", name, queue)
			_ = fresh(d, l, naming.Default, letters.PastRedrive{By: name}, "guest")
			_ = same(d)
		}
	}
}

// A hostile delivery, in JSON, causes no panic, and a letter of it can be shown.
func FuzzRead(f *testing.F) {
	f.Add("orders.dead", "retry", "dead.orders", folded, "3", "exhausted", "orders", []byte("{}"))
	f.Add("retry.orphans", "retry.return", "10s.orders", "n1", "-1", "", "", []byte(nil))
	f.Add("x", "", "inbox.", "", "\xff", "\x00", "base64:", []byte("\xff"))
	f.Fuzz(func(t *testing.T, queue, exchange, key, record, failures, reason, other string, body []byte) {
		for _, deaths := range []any{nil, other, []any{}, []any{other}, []any{amqp091.Table{"queue": queue, "reason": reason, "exchange": exchange}}} {
			d := &amqp091.Delivery{Exchange: exchange, RoutingKey: key, MessageId: other, Body: body, Headers: amqp091.Table{
				"retry_record": record, "retry_failures": failures, "retry_dead_reason": reason, "retry_redriven": other, "x-death": deaths,
				other: record, "reason_poisoned": reason, "retry_last_failed_at": other,
			}}
			l := read(d, queue, naming.Default)
			require.NotEmpty(t, l.ID)
			_, err := json.Marshal(l)
			require.NoError(t, err)
			for _, p := range []amqp091.Publishing{fresh(d, l, naming.Default, letters.PastRedrive{}, "guest"), same(d)} {
				require.NoError(t, p.Headers.Validate())
				require.Equal(t, body, p.Body)
			}
			line, err := appendLine(nil, d, l)
			require.NoError(t, err)
			if parsed, err := parseLine(line); err == nil {
				require.Equal(t, same(d).Headers, parsed.Publishing.Headers)
			}
		}
	})
}
