// Package letterline is a dead letter as one line of JSON, in the files of an export and in those of a test. It knows
// the types of AMQP headers by their form, and needs no client of a broker.
package letterline

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tieredretry/watermill-retry/retry"
)

// UUIDHeader is the header in which watermill-amqp's DefaultMarshaler stores the UUID of a message.
const UUIDHeader = "_watermill_message_uuid"

// longestText is how many bytes of a body a line also has as text, for readers of the file.
const longestText = 4096

// Line is a line of JSON. ID, Target, Kind, Record and Text are for readers of the file: an import ignores them.
type Line struct {
	ID         string         `json:"id"`
	Queue      string         `json:"queue"`
	Target     string         `json:"target,omitzero"`
	Kind       string         `json:"kind"`
	Record     retry.Record   `json:"record"`
	Exchange   string         `json:"exchange"`
	RoutingKey string         `json:"routing_key"`
	Properties map[string]any `json:"properties"`
	Headers    map[string]any `json:"headers"` // the headers of Table
	Body       []byte         `json:"body"`
	Text       string         `json:"text,omitzero"`
}

// Append appends the line and its end. It sets Text.
func (l Line) Append(b []byte) ([]byte, error) {
	l.Body = append([]byte{}, l.Body...) // an empty one is no null
	l.Text = readable(l.Body)
	line, err := json.Marshal(l)
	if err != nil {
		return b, err
	}
	return append(append(b, line...), '\n'), nil
}

// readable returns a body that is a short text, or "".
func readable(body []byte) string {
	if len(body) > longestText || !utf8.Valid(body) {
		return ""
	}
	for _, char := range string(body) {
		if char < ' ' && char != '\t' && char != '\n' && char != '\r' {
			return ""
		}
	}
	return string(body)
}

// base64Prefix begins a text that is not valid UTF-8, and so cannot be a text of JSON.
const base64Prefix = "base64:"

// EncodeText returns a text as a text of JSON.
func EncodeText(text string) string {
	if utf8.ValidString(text) && !strings.HasPrefix(text, base64Prefix) {
		return text
	}
	return base64Prefix + base64.StdEncoding.EncodeToString([]byte(text))
}

// DecodeText reads what EncodeText wrote.
func DecodeText(at, text string) (string, error) {
	encoded, found := strings.CutPrefix(text, base64Prefix)
	if !found {
		return text, nil
	}
	decoded, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return "", fmt.Errorf("%s begins with %q, and the rest is not base64: %w", at, base64Prefix, err)
	}
	return string(decoded), nil
}

// A header's value is an object with one field: the letter of its AMQP field type (RabbitMQ's table of AMQP 0-9-1
// field types), and the value. Numbers of 64 bits are texts, because many readers of JSON have only 53 bits.
type tagged = map[string]any

// MaxDepth bounds nested headers. amqp091-go closes a connection that delivers deeper ones.
const MaxDepth = 32

// CheckDepth refuses what is nested too deep.
func CheckDepth(at string, depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("%.80s... is nested deeper than %d tables and arrays", at, MaxDepth)
	}
	return nil
}

// Table returns headers as they are in a Line.
func Table[V any](headers map[string]V) (map[string]any, error) {
	return encodeTable("headers", headers, 0)
}

func encodeTable[V any](at string, table map[string]V, depth int) (map[string]any, error) {
	if err := CheckDepth(at, depth); err != nil {
		return nil, err
	}
	encoded := make(map[string]any, len(table))
	for name, value := range table {
		var err error
		if encoded[EncodeText(name)], err = encodeValue(at+"."+name, value, depth); err != nil {
			return nil, err
		}
	}
	return encoded, nil
}

// The forms of what amqp091-go has types of its own for.
var (
	tableType   = reflect.TypeFor[map[string]any]()
	decimalType = reflect.TypeFor[Decimal]()
)

// Decimal is the form of amqp091.Decimal.
type Decimal = struct {
	Scale uint8
	Value int32
}

func encodeValue(at string, value any, depth int) (any, error) {
	switch v := value.(type) {
	case nil:
		return tagged{"V": nil}, nil
	case bool:
		return tagged{"t": v}, nil
	case byte:
		return tagged{"B": v}, nil
	case int8:
		return tagged{"b": v}, nil
	case int16:
		return tagged{"s": v}, nil
	case uint16:
		return tagged{"u": v}, nil
	case int32:
		return tagged{"I": v}, nil
	case uint32:
		return tagged{"i": v}, nil
	case int64:
		return tagged{"l": strconv.FormatInt(v, 10)}, nil
	case float32:
		return tagged{"f": strconv.FormatFloat(float64(v), 'g', -1, 32)}, nil
	case float64:
		return tagged{"d": strconv.FormatFloat(v, 'g', -1, 64)}, nil
	case time.Time:
		return tagged{"T": v.Unix()}, nil
	case string:
		return tagged{"S": EncodeText(v)}, nil
	case []byte:
		return tagged{"x": base64.StdEncoding.EncodeToString(v)}, nil
	case []any:
		array, err := encodeArray(at, v, depth+1)
		return tagged{"A": array}, err
	}
	switch v := reflect.ValueOf(value); {
	case v.CanConvert(tableType):
		table, err := encodeTable(at, v.Convert(tableType).Interface().(map[string]any), depth+1)
		return tagged{"F": table}, err
	case v.CanConvert(decimalType):
		d := v.Convert(decimalType).Interface().(Decimal)
		return tagged{"D": [2]any{d.Scale, d.Value}}, nil
	}
	return nil, fmt.Errorf("%s has the Go type %T, which is no AMQP field type", at, value)
}

func encodeArray(at string, array []any, depth int) ([]any, error) {
	if err := CheckDepth(at, depth); err != nil {
		return nil, err
	}
	encoded := make([]any, len(array))
	for i, element := range array {
		var err error
		if encoded[i], err = encodeValue(at+"["+strconv.Itoa(i)+"]", element, depth); err != nil {
			return nil, err
		}
	}
	return encoded, nil
}
