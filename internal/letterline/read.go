package letterline

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
)

// A Reader reads what Append wrote. It refuses what is no such line. T and D are the types of tables and decimals. It
// keeps its first error, which names the field, and what its methods return after that has no meaning.
type Reader[T ~map[string]any, D ~Decimal] struct {
	// Needed are the fields that a line must have.
	Needed []string
	// Longest bounds the names of headers, and the texts beside the body and the headers, in bytes. 0: nothing does.
	Longest int

	first
}

// first is the first error.
type first struct{ err error }

func (f *first) fail(format string, args ...any) { f.check(fmt.Errorf(format, args...)) }

func (f *first) check(err error) {
	if f.err == nil {
		f.err = err
	}
}

func (r *Reader[T, D]) tooLong(text string) bool { return r.Longest > 0 && len(text) > r.Longest }

// A Letter is what a Reader reads of a line.
type Letter[T ~map[string]any] struct {
	Queue, Exchange, RoutingKey string
	Properties                  map[string]any // each is a uint8, a time.Time or a string
	Headers                     T
	Body                        []byte
}

// texts are the names of the properties that are texts.
var texts = []string{"content_type", "content_encoding", "correlation_id", "reply_to", "expiration",
	"message_id", "type", "user_id", "app_id"}

// ignored are the fields for readers of the file.
var ignored = []string{"id", "target", "kind", "record", "text"}

// Read reads a line.
func (r *Reader[T, D]) Read(line []byte) (l Letter[T], err error) {
	if !utf8.Valid(line) {
		return l, errors.New("the line is not valid UTF-8")
	}
	fields := r.object("", line)
	for _, name := range r.Needed {
		if _, found := fields[name]; !found {
			r.fail("the field %q is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch raw := fields[name]; name {
		case "body":
			l.Body = r.bytes(name, raw)
		case "exchange":
			l.Exchange = r.shortText(name, raw)
		case "headers":
			l.Headers = r.table(name, raw, 0)
		case "properties":
			l.Properties = r.properties(name, raw)
		case "queue":
			if l.Queue = r.shortText(name, raw); l.Queue == "" {
				r.fail("queue is empty: it must be the name of a queue")
			}
		case "routing_key":
			l.RoutingKey = r.shortText(name, raw)
		default:
			if !slices.Contains(ignored, name) {
				r.fail("the field %q is unknown", name)
			}
		}
	}
	return l, r.err
}

func (r *Reader[T, D]) properties(at string, raw json.RawMessage) map[string]any {
	fields, read := r.object(at, raw), map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at, raw := at+"."+name, fields[name]
		switch {
		case name == "priority":
			read[name] = uint8(r.integer(at, raw, 0, math.MaxUint8))
		case name == "delivery_mode":
			read[name] = uint8(r.integer(at, raw, 1, 2))
		case name == "timestamp":
			read[name] = time.Unix(r.integer(at, raw, math.MinInt64, math.MaxInt64), 0)
		case slices.Contains(texts, name):
			read[name] = r.shortText(at, raw)
		default:
			r.fail("%s is unknown", at)
		}
	}
	return read
}

// object reads an object of JSON. encoding/json alone would take the last of two fields with the same name.
func (r *Reader[T, D]) object(at string, raw []byte) map[string]json.RawMessage {
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

func (r *Reader[T, D]) table(at string, raw json.RawMessage, depth int) T {
	r.check(CheckDepth(at, depth))
	fields := r.object(at, raw)
	table := make(T, len(fields))
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := at + "." + key
		name, err := DecodeText(at, key)
		r.check(err)
		if r.tooLong(name) {
			r.fail("%s: the name has %d bytes, and AMQP allows %d", at, len(name), r.Longest)
		}
		if _, twice := table[name]; twice {
			r.fail("%s is there twice", at)
		}
		table[name] = r.value(at, fields[key], depth)
	}
	return table
}

func (r *Reader[T, D]) value(at string, raw json.RawMessage, depth int) any {
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

func (r *Reader[T, D]) tagged(at, tag string, raw json.RawMessage, depth int) any {
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
		return r.integer(at, json.RawMessage(parse[string](&r.first, at, raw)), math.MinInt64, math.MaxInt64)
	case "f":
		return float32(r.float(at, raw, 32))
	case "d":
		return r.float(at, raw, 64)
	case "D":
		parts := parse[[]json.RawMessage](&r.first, at, raw)
		if len(parts) != 2 {
			r.fail("%s has %d elements: it must have two, scale and value", at, len(parts))
			return nil
		}
		return D{Scale: uint8(r.integer(at+"[0]", parts[0], 0, math.MaxUint8)),
			Value: int32(r.integer(at+"[1]", parts[1], math.MinInt32, math.MaxInt32))}
	case "t":
		return parse[bool](&r.first, at, raw)
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

func (r *Reader[T, D]) array(at string, raw json.RawMessage, depth int) any {
	r.check(CheckDepth(at, depth))
	elements := parse[[]json.RawMessage](&r.first, at, raw)
	array := make([]any, len(elements))
	for i, element := range elements {
		array[i] = r.value(at+"["+strconv.Itoa(i)+"]", element, depth)
	}
	return array
}

// integer reads an integer. It does not accept a fraction, an exponent or a number out of the range.
func (r *Reader[T, D]) integer(at string, raw json.RawMessage, least, most int64) int64 {
	number, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || number < least || number > most {
		r.fail("%s is %.40q: it must be an integer from %d to %d", at, raw, least, most)
	}
	return number
}

// float reads a text, because JSON has no NaN. RabbitMQ closes the connection for a number that is not finite.
func (r *Reader[T, D]) float(at string, raw json.RawMessage, bits int) float64 {
	text := parse[string](&r.first, at, raw)
	number, err := strconv.ParseFloat(text, bits)
	if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
		r.fail("%s is %.40q: it must be a finite number of %d bits, because RabbitMQ refuses any other", at, text, bits)
	}
	return number
}

func (r *Reader[T, D]) bytes(at string, raw json.RawMessage) []byte {
	decoded, err := base64.StdEncoding.Strict().DecodeString(parse[string](&r.first, at, raw))
	if err != nil {
		r.fail("%s is not base64: %w", at, err)
	}
	return decoded
}

func (r *Reader[T, D]) text(at string, raw json.RawMessage) string {
	text, err := DecodeText(at, parse[string](&r.first, at, raw))
	r.check(err)
	return text
}

func (r *Reader[T, D]) shortText(at string, raw json.RawMessage) string {
	text := r.text(at, raw)
	if r.tooLong(text) {
		r.fail("%s has %d bytes: AMQP allows %d", at, len(text), r.Longest)
	}
	return text
}

// parse reads a value that must not be null, which encoding/json takes for any type.
func parse[V any](r *first, at string, raw json.RawMessage) (value V) {
	if string(raw) == "null" {
		r.fail("%s is null: it must be a %T", at, value)
	} else if err := json.Unmarshal(raw, &value); err != nil {
		r.fail("%s must be a %T: %w", at, value, err)
	}
	return value
}
