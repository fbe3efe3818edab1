package deadletter

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/letterline"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/letters"
)

// maxShortString bounds names and properties: AMQP 0-9-1 sends them as short strings.
const maxShortString = 255

// appendLine appends a letter as one line of JSON.
func appendLine(b []byte, d *amqp091.Delivery, l *letters.Letter) ([]byte, error) {
	properties := map[string]any{}
	for name, property := range texts(d) {
		if *property != "" {
			properties[name] = letterline.EncodeText(*property)
		}
	}
	if d.Priority != 0 {
		properties["priority"] = d.Priority
	}
	if d.DeliveryMode != 0 {
		properties["delivery_mode"] = d.DeliveryMode
	}
	if !d.Timestamp.IsZero() {
		properties["timestamp"] = d.Timestamp.Unix()
	}
	table, err := letterline.Table(d.Headers)
	if err == nil {
		b, err = letterline.Line{
			ID: l.ID, Queue: letterline.EncodeText(l.Queue), Target: l.Target, Kind: string(l.Kind), Record: l.Record,
			Exchange: letterline.EncodeText(d.Exchange), RoutingKey: letterline.EncodeText(d.RoutingKey),
			Properties: properties, Headers: table, Body: d.Body,
		}.Append(b)
	}
	if err != nil {
		err = fmt.Errorf("letter %q cannot be exported: %w", l.ID, err)
	}
	return b, err
}

// texts returns the properties that are texts, by their names.
func texts(d *amqp091.Delivery) map[string]*string {
	return map[string]*string{
		"content_type": &d.ContentType, "content_encoding": &d.ContentEncoding, "correlation_id": &d.CorrelationId,
		"reply_to": &d.ReplyTo, "expiration": &d.Expiration, "message_id": &d.MessageId, "type": &d.Type,
		"user_id": &d.UserId, "app_id": &d.AppId,
	}
}

// A line is a letter that was exported. Publishing is what same returns for its delivery.
type line struct {
	Queue, Exchange, RoutingKey string
	Publishing                  amqp091.Publishing
}

// needed are the fields of a line that are read, and ignored those for readers of the file.
var (
	needed  = []string{"body", "exchange", "headers", "properties", "queue", "routing_key"}
	ignored = []string{"id", "target", "kind", "record", "text"}
)

// parseLine reads what appendLine wrote. It refuses what is no such line, and what RabbitMQ would answer by closing
// the channel or the connection. Its errors name the field.
func parseLine(b []byte) (line, error) {
	if !utf8.Valid(b) {
		return line{}, errors.New("the line is not valid UTF-8")
	}
	r, d, l := &reader{}, amqp091.Delivery{}, line{}
	fields := r.object("", b)
	for _, name := range needed {
		if _, found := fields[name]; !found {
			r.fail("the field %q is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(slices.Concat(needed, ignored), name) {
			r.fail("the field %q is unknown", name)
		}
	}
	d.Body = r.bytes("body", fields["body"])
	l.Exchange = r.shortText("exchange", fields["exchange"])
	d.Headers = r.table("headers", fields["headers"], 0)
	r.properties("properties", fields["properties"], &d)
	l.Queue = r.shortText("queue", fields["queue"])
	l.RoutingKey = r.shortText("routing_key", fields["routing_key"])
	if l.Queue == "" {
		r.fail("queue is empty: it must be the name of a queue")
	}
	if r.err != nil {
		return line{}, r.err
	}
	d.Exchange, d.RoutingKey = l.Exchange, l.RoutingKey
	l.Publishing = same(&d)
	return l, nil
}

func (r *reader) properties(at string, raw json.RawMessage, d *amqp091.Delivery) {
	named := texts(d)
	fields := r.object(at, raw)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at, raw := at+"."+name, fields[name]
		switch name {
		case "priority":
			d.Priority = uint8(r.integer(at, raw, 0, math.MaxUint8))
		case "delivery_mode":
			d.DeliveryMode = uint8(r.integer(at, raw, 1, 2))
		case "timestamp":
			d.Timestamp = time.Unix(r.integer(at, raw, math.MinInt64, math.MaxInt64), 0)
		default:
			if named[name] == nil {
				r.fail("%s is unknown", at)
				return
			}
			*named[name] = r.shortText(at, raw)
		}
	}
	if err := unfit.CheckExpiration(d.Expiration); err != nil { // an import without DryRun would find it only later
		r.fail("%s.%w", at, err)
	}
}

// reader reads the values of a line. It keeps its first error, and what it returns after that has no meaning.
type reader struct{ err error }

func (r *reader) fail(format string, args ...any) { r.check(fmt.Errorf(format, args...)) }

func (r *reader) check(err error) {
	if r.err == nil {
		r.err = err
	}
}

// object reads an object of JSON. encoding/json alone would take the last of two fields with the same name.
func (r *reader) object(at string, raw []byte) map[string]json.RawMessage {
	at = cmp.Or(at, "the line")
	decoder := json.NewDecoder(bytes.NewReader(raw))
	start, err := decoder.Token()
	if err == nil && start != json.Delim('{') {
		r.fail("%s must be a JSON object, and begins with %v", at, start)
		return nil
	}
	fields := map[string]json.RawMessage{}
	for err == nil && decoder.More() {
		var key json.Token
		if key, err = decoder.Token(); err != nil {
			break
		}
		text, _ := key.(string) // JSON has no other keys
		if _, twice := fields[text]; twice {
			r.fail("%s has the field %q twice", at, text)
		}
		var value json.RawMessage
		err = decoder.Decode(&value)
		fields[text] = value
	}
	if err == nil {
		_, err = decoder.Token()
	}
	if err != nil {
		r.fail("%s is no JSON object: %w", at, err)
		return nil
	}
	if rest := bytes.TrimSpace(raw[decoder.InputOffset():]); len(rest) > 0 {
		r.fail("%s has %d bytes after its end", at, len(rest))
	}
	return fields
}

func (r *reader) table(at string, raw json.RawMessage, depth int) amqp091.Table {
	r.check(letterline.CheckDepth(at, depth))
	fields := r.object(at, raw)
	table := make(amqp091.Table, len(fields))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := at + "." + key
		name, err := letterline.DecodeText(at, key)
		r.check(err)
		if len(name) > maxShortString {
			r.fail("%s: the name has %d bytes, and AMQP allows %d", at, len(name), maxShortString)
		}
		if _, twice := table[name]; twice {
			r.fail("%s is there twice", at)
		}
		table[name] = r.value(at, fields[key], depth)
	}
	return table
}

func (r *reader) value(at string, raw json.RawMessage, depth int) any {
	if r.err != nil { // what is nested too deep is not read to its end
		return nil
	}
	fields := r.object(at, raw)
	if len(fields) != 1 {
		r.fail(`%s has %d fields: it must have one, the letter of its type, such as {"S":"text"}`, at, len(fields))
	}
	for tag, raw := range fields {
		return r.tagged(at+"."+tag, tag, raw, depth)
	}
	return nil
}

func (r *reader) tagged(at, tag string, raw json.RawMessage, depth int) any {
	switch tag {
	case "b":
		return int8(r.integer(at, raw, math.MinInt8, math.MaxInt8))
	case "B":
		return uint8(r.integer(at, raw, 0, math.MaxUint8))
	case "s":
		return int16(r.integer(at, raw, math.MinInt16, math.MaxInt16))
	case "u":
		return uint16(r.integer(at, raw, 0, math.MaxUint16))
	case "I":
		return int32(r.integer(at, raw, math.MinInt32, math.MaxInt32))
	case "i":
		return uint32(r.integer(at, raw, 0, math.MaxUint32))
	case "T":
		return time.Unix(r.integer(at, raw, math.MinInt64, math.MaxInt64), 0)
	case "l":
		return r.integer(at, json.RawMessage(parse[string](r, at, raw)), math.MinInt64, math.MaxInt64)
	case "f":
		return float32(r.float(at, raw, 32))
	case "d":
		return r.float(at, raw, 64)
	case "D":
		parts := parse[[]json.RawMessage](r, at, raw)
		if len(parts) != 2 {
			r.fail("%s has %d elements: it must have two, scale and value", at, len(parts))
			return nil
		}
		return amqp091.Decimal{Scale: uint8(r.integer(at+"[0]", parts[0], 0, math.MaxUint8)),
			Value: int32(r.integer(at+"[1]", parts[1], math.MinInt32, math.MaxInt32))}
	case "t":
		return parse[bool](r, at, raw)
	case "S":
		return r.text(at, raw)
	case "x":
		return r.bytes(at, raw)
	case "A":
		return r.array(at, raw, depth+1)
	case "F":
		return r.table(at, raw, depth+1)
	case "V":
		if string(raw) != "null" {
			r.fail("%s is %s: it must be null", at, raw)
		}
		return nil
	}
	r.fail("%s: %q is no letter of an AMQP field type", at, tag)
	return nil
}

func (r *reader) array(at string, raw json.RawMessage, depth int) any {
	r.check(letterline.CheckDepth(at, depth))
	elements := parse[[]json.RawMessage](r, at, raw)
	array := make([]any, len(elements))
	for i, element := range elements {
		array[i] = r.value(at+"["+strconv.Itoa(i)+"]", element, depth)
	}
	return array
}

// integer reads an integer. It does not accept a fraction, an exponent or a number out of the range.
func (r *reader) integer(at string, raw json.RawMessage, least, most int64) int64 {
	number, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || number < least || number > most {
		r.fail("%s is %.40q: it must be an integer from %d to %d", at, raw, least, most)
	}
	return number
}

// float reads a text, because JSON has no NaN. RabbitMQ closes the connection for a number that is not finite.
func (r *reader) float(at string, raw json.RawMessage, bits int) float64 {
	text := parse[string](r, at, raw)
	number, err := strconv.ParseFloat(text, bits)
	if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
		r.fail("%s is %.40q: it must be a finite number of %d bits, because RabbitMQ refuses any other", at, text, bits)
	}
	return number
}

func (r *reader) bytes(at string, raw json.RawMessage) []byte {
	decoded, err := base64.StdEncoding.Strict().DecodeString(parse[string](r, at, raw))
	if err != nil {
		r.fail("%s is not base64: %w", at, err)
	}
	return decoded
}

func (r *reader) text(at string, raw json.RawMessage) string {
	text, err := letterline.DecodeText(at, parse[string](r, at, raw))
	r.check(err)
	return text
}

func (r *reader) shortText(at string, raw json.RawMessage) string {
	text := r.text(at, raw)
	if len(text) > maxShortString {
		r.fail("%s has %d bytes: AMQP allows %d", at, len(text), maxShortString)
	}
	return text
}

// parse reads a value that must not be null, which encoding/json takes for any type.
func parse[T any](r *reader, at string, raw json.RawMessage) (value T) {
	if string(raw) == "null" {
		r.fail("%s is null: it must be a %T", at, value)
	} else if err := json.Unmarshal(raw, &value); err != nil {
		r.fail("%s must be a %T: %w", at, value, err)
	}
	return value
}
