package deadletter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/letterline"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/letters"
)

// written returns the line of a delivery from a queue.
func written(t *testing.T, d *amqp091.Delivery, queue string) []byte {
	t.Helper()
	b, err := appendLine([]byte("before"), d, read(d, queue, naming.Default))
	require.NoError(t, err)
	b, found := bytes.CutPrefix(b, []byte("before"))
	require.True(t, found)
	require.Equal(t, 1, bytes.Count(b, []byte("\n")), "one line")
	require.Equal(t, byte('\n'), b[len(b)-1])
	return b
}

func TestALineHasEverything(t *testing.T) {
	for name, d := range map[string]*amqp091.Delivery{
		"every type and property": full(everyType()), "library": full(libraryHeaders()), "empty": {},
		"broker":     {Headers: amqp091.Table{"x-death": deathOf("orders", "expired", "", "orders")}, Exchange: "retry", RoutingKey: "dead.orders"},
		"orphan":     {Headers: amqp091.Table{"retry_record": folded, "x-death": deathOf("q", "expired", "retry", "10s.q")}, Exchange: "retry.return", RoutingKey: "10s.q"},
		"every byte": {Body: everyByte(), Headers: amqp091.Table{string(everyByte()[1:]): string(everyByte()), "base64:": "base64:YQ==", "": everyByte()}},
		"latin1":     {Type: "caf\xe9", RoutingKey: "\xff", Exchange: "base64:", ReplyTo: "<a>&\u2028\n"},
		"old":        {Timestamp: time.Unix(-1, 0)}, "far": {Timestamp: time.Unix(1<<60, 0)},
		"deep":       {Headers: nested(letterline.MaxDepth)},
		"large body": {Body: bytes.Repeat([]byte("a\n"), 1<<20)},
	} {
		for _, queue := range []string{"orders.dead", "retry.orphans", "base64:queue", "\xff"} {
			got, err := parseLine(written(t, d, queue))
			require.NoError(t, err, name)
			want := line{Queue: queue, Exchange: d.Exchange, RoutingKey: d.RoutingKey, Publishing: same(d)}
			if want.Publishing.Body == nil {
				want.Publishing.Body = []byte{}
			}
			assert.Equal(t, want, got, "%s in %s", name, queue)
		}
	}
}

func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// nested returns headers with tables and arrays within each other.
func nested(depth int) amqp091.Table {
	var value any = "core"
	for i := range depth {
		if value = any([]any{value}); i%2 == 0 {
			value = amqp091.Table{"n": value.([]any)[0]}
		}
	}
	return amqp091.Table{"n": value}
}

func TestEachNumberStaysAsItIs(t *testing.T) {
	for _, value := range []any{
		int8(math.MinInt8), int8(math.MaxInt8), byte(0), byte(math.MaxUint8), int16(math.MinInt16), int16(math.MaxInt16), uint16(math.MaxUint16),
		int32(math.MinInt32), int32(math.MaxInt32), uint32(math.MaxUint32), int64(math.MinInt64), int64(math.MaxInt64), float32(math.MaxFloat32),
		float32(math.SmallestNonzeroFloat32), float32(0.1), math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1, 1e21, 5e-7, math.Copysign(0, -1),
		amqp091.Decimal{Scale: 255, Value: math.MinInt32}, amqp091.Decimal{Scale: 0, Value: math.MaxInt32}, time.Unix(math.MinInt64, 0), time.Unix(math.MaxInt64, 0),
		time.Unix(0, 0), true, false, nil, "", []byte{}, []any{}, amqp091.Table{},
	} {
		d := &amqp091.Delivery{Headers: amqp091.Table{"v": value}, Body: []byte{}}
		got, err := parseLine(written(t, d, "q"))
		require.NoError(t, err)
		have := got.Publishing.Headers["v"]
		assert.Equal(t, fmt.Sprintf("%T %#v", value, value), fmt.Sprintf("%T %#v", have, have))
	}
}

// The main fields of a line need no decoder.
func TestALineIsReadable(t *testing.T) {
	d := full(libraryHeaders())
	d.Headers["ok"] = true
	var shown struct {
		ID, Queue, Target, Kind, Text string
		Record                        struct {
			Failures int
			Reason   string
		}
		Headers map[string]map[string]any
	}
	require.NoError(t, json.Unmarshal(written(t, d, "orders.dead"), &shown))
	assert.Equal(t, uuid, shown.ID)
	assert.Equal(t, "orders.dead orders library body", strings.Join([]string{shown.Queue, shown.Target, shown.Kind, shown.Text}, " "))
	assert.Equal(t, 3, shown.Record.Failures)
	assert.Equal(t, "down", shown.Record.Reason)
	assert.Equal(t, map[string]any{"S": "abc"}, shown.Headers["trace"])
	assert.Equal(t, map[string]any{"l": "7"}, shown.Headers["number"])
	assert.Equal(t, map[string]any{"t": true}, shown.Headers["ok"])

	for _, body := range []string{"a\x00", "\xff", strings.Repeat("a", 4096+1)} {
		d.Body = []byte(body)
		assert.NotContains(t, string(written(t, d, "orders.dead")), `"text"`)
	}
}

func TestWhatCannotBeExported(t *testing.T) {
	for want, headers := range map[string]amqp091.Table{
		"headers.a has the Go type uint64":  {"a": uint64(1)},
		"headers.a[1].b has the Go type":    {"a": []any{nil, amqp091.Table{"b": struct{}{}}}},
		"is nested deeper than 32 tables":   nested(letterline.MaxDepth + 1),
		"headers.int has the Go type int, ": {"int": 1},
	} {
		d := &amqp091.Delivery{Headers: headers, MessageId: "m-1"}
		b, err := appendLine([]byte("before"), d, &letters.Letter{ID: "m-1"})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, `letter "m-1" cannot be exported`)
		assert.Equal(t, "before", string(b))
	}
}

// lineWith returns a line with a replaced field, as JSON.
func lineWith(t *testing.T, field, value string) []byte {
	t.Helper()
	fields := map[string]json.RawMessage{}
	require.NoError(t, json.Unmarshal(written(t, &amqp091.Delivery{}, "q"), &fields))
	if fields[field] = json.RawMessage(value); value == "" {
		delete(fields, field)
	}
	b, err := json.Marshal(fields)
	require.NoError(t, err)
	return b
}

func TestLinesThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", 256)
	deep := strings.Repeat(`{"F":{"n":`, 40) + `{"V":null}` + strings.Repeat("}}", 40)
	array := strings.Repeat(`{"A":[`, 40) + `{"V":null}` + strings.Repeat("]}", 40)
	for _, c := range []struct{ field, value, want string }{
		{"queue", "", `the field "queue" is missing`},
		{"body", "", `the field "body" is missing`},
		{"headers", "", `the field "headers" is missing`},
		{"extra", `1`, `the field "extra" is unknown`},
		{"Queue", `"a"`, `the field "Queue" is unknown`},
		{"queue", `""`, `queue is empty`},
		{"queue", `null`, `queue is null`},
		{"queue", `7`, `queue must be a string`},
		{"queue", `"` + long + `"`, `queue has 256 bytes: AMQP allows 255`},
		{"queue", `"base64:!"`, `queue begins with "base64:", and the rest is not base64`},
		{"body", `"!"`, `body is not base64`},
		{"body", `[1]`, `body must be a string`},
		{"properties", `[]`, `properties must be a JSON object`},
		{"properties", `{"priority":256}`, `properties.priority is "256": it must be an integer from 0 to 255`},
		{"properties", `{"priority":1.0}`, `properties.priority is "1.0"`},
		{"properties", `{"priority":"1"}`, `properties.priority is "\"1\""`},
		{"properties", `{"delivery_mode":3}`, `properties.delivery_mode is "3": it must be an integer from 1 to 2`},
		{"properties", `{"timestamp":9223372036854775808}`, `properties.timestamp is "9223372036854775808"`},
		{"properties", `{"cluster_id":"x"}`, `properties.cluster_id is unknown`},
		{"properties", `{"type":"` + long + `"}`, `properties.type has 256 bytes`},
		{"properties", `{"expiration":"soon"}`, `properties.expiration is "soon"`},
		{"properties", `{"expiration":"-1"}`, `properties.expiration is "-1"`},
		{"properties", `{"type":"a","type":"b"}`, `properties has the field "type" twice`},
		{"headers", `{"a":{"S":"x"},"a":{"S":"y"}}`, `headers has the field "a" twice`},
		{"headers", `{"a":{"S":"x"},"base64:YQ==":{"S":"y"}}`, `headers.base64:YQ== is there twice`},
		{"headers", `{"` + long + `":{"S":"x"}}`, `the name has 256 bytes, and AMQP allows 255`},
		{"headers", `{"base64:!":{"S":"x"}}`, `headers.base64:! begins with`},
		{"headers", `{"a":"x"}`, `headers.a must be a JSON object`},
		{"headers", `{"a":{}}`, `headers.a has 0 fields`},
		{"headers", `{"a":{"S":"x","l":"1"}}`, `headers.a has 2 fields`},
		{"headers", `{"a":{"L":"1"}}`, `headers.a.L: "L" is no letter of an AMQP field type`},
		{"headers", `{"a":{"s":"x"}}`, `headers.a.s is "\"x\"": it must be an integer from -32768 to 32767`},
		{"headers", `{"a":{"b":128}}`, `headers.a.b is "128": it must be an integer from -128 to 127`},
		{"headers", `{"a":{"B":-1}}`, `headers.a.B is "-1"`},
		{"headers", `{"a":{"u":65536}}`, `headers.a.u is "65536"`},
		{"headers", `{"a":{"I":2147483648}}`, `headers.a.I is "2147483648"`},
		{"headers", `{"a":{"i":4294967296}}`, `headers.a.i is "4294967296"`},
		{"headers", `{"a":{"i":1e3}}`, `headers.a.i is "1e3"`},
		{"headers", `{"a":{"l":1}}`, `headers.a.l must be a string`},
		{"headers", `{"a":{"l":"9223372036854775808"}}`, `headers.a.l is "9223372036854775808"`},
		{"headers", `{"a":{"l":"0x1"}}`, `headers.a.l is "0x1"`},
		{"headers", `{"a":{"f":"1e39"}}`, `headers.a.f is "1e39": it must be a finite number of 32 bits`},
		{"headers", `{"a":{"d":"NaN"}}`, `headers.a.d is "NaN": it must be a finite number of 64 bits`},
		{"headers", `{"a":{"d":"-Inf"}}`, `headers.a.d is "-Inf"`},
		{"headers", `{"a":{"d":1.5}}`, `headers.a.d must be a string`},
		{"headers", `{"a":{"t":1}}`, `headers.a.t must be a bool`},
		{"headers", `{"a":{"t":null}}`, `headers.a.t is null`},
		{"headers", `{"a":{"V":0}}`, `headers.a.V is 0: it must be null`},
		{"headers", `{"a":{"D":[1]}}`, `headers.a.D has 1 elements`},
		{"headers", `{"a":{"D":[256,1]}}`, `headers.a.D[0] is "256"`},
		{"headers", `{"a":{"D":[1,2147483648]}}`, `headers.a.D[1] is "2147483648"`},
		{"headers", `{"a":{"x":"%"}}`, `headers.a.x is not base64`},
		{"headers", `{"a":{"A":[{"S":"x"},{"F":{"b":{"T":"now"}}}]}}`, `headers.a.A[1].F.b.T is "\"now\""`},
		{"headers", `{"a":{"A":{}}}`, `headers.a.A must be a []json.RawMessage`},
		{"headers", `{"a":` + deep + `}`, `is nested deeper than 32 tables and arrays`},
		{"headers", `{"a":` + array + `}`, `is nested deeper than 32 tables and arrays`},
	} {
		_, err := parseLine(lineWith(t, c.field, c.value))
		require.ErrorContains(t, err, c.want, "%s: %s", c.field, c.value)
		assert.Less(t, len(err.Error()), 1000)
	}
	whole := written(t, &amqp091.Delivery{}, "q")
	for text, want := range map[string]string{
		"": "no JSON object", "{": "no JSON object", "[]": "must be a JSON object", "null": "must be a JSON object", "letter": "no JSON object",
		string(whole) + "{}": "has 2 bytes after its end", string(whole[:len(whole)-3]): "no JSON object",
		strings.Replace(string(whole), `"id":`, `"queue":"a","id":`, 1):          `the line has the field "queue" twice`,
		strings.Replace(string(whole), `"id":"`, "\"id\":\"\xff", 1):             "not valid UTF-8",
		strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000):        "no JSON object",
		strings.Replace(string(whole), `"headers":{}`, `"headers":{"a" 1}`, 1):   "",
		strings.Replace(string(whole), `"headers":{}`, `"headers":{"a":{"S"`, 1): "",
	} {
		_, err := parseLine([]byte(text))
		require.ErrorContains(t, err, want, "%.80s", text)
	}
	_, err := parseLine(append([]byte(" \t"), whole...))
	require.NoError(t, err)
}

// Every delivery is the same after its line was read, and every text causes a line or an error.
func FuzzLine(f *testing.F) {
	for _, d := range []*amqp091.Delivery{full(everyType()), full(libraryHeaders()), {}} {
		b, err := appendLine(nil, d, &letters.Letter{Queue: "q", ID: "i"})
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"queue":"a","headers":{"a":{"A":[{"d":"-0x1p-2"}]}},"body":"","properties":{},"exchange":"","routing_key":""}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLine(text)
		if err != nil {
			require.Zero(t, l)
			return
		}
		require.NoError(t, l.Publishing.Headers.Validate())
		p := l.Publishing
		d := &amqp091.Delivery{
			Headers: maps.Clone(p.Headers), ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
			Priority: p.Priority, CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId,
			Timestamp: p.Timestamp, Type: p.Type, UserId: p.UserId, AppId: p.AppId, Body: p.Body, Exchange: l.Exchange, RoutingKey: l.RoutingKey,
		}
		again, err := parseLine(written(t, d, l.Queue))
		require.NoError(t, err)
		require.Equal(t, l, again)
	})
}
