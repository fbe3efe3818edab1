package kept

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// A file is the data of one version of RabbitMQ.
type file struct {
	Broker   string      `json:"broker"`
	KeptAt   time.Time   `json:"kept_at"`
	Former   definitions `json:"former"` // what was declared beside the topology of the apps
	Messages []kept      `json:"messages"`
	Expected seen        `json:"expected"`
}

// kept is a message in its queue, as a client gets it.
type kept struct {
	State      string            `json:"state"` // for readers of the file
	Queue      string            `json:"queue"`
	Exchange   string            `json:"exchange"`
	RoutingKey string            `json:"routing_key"`
	Properties map[string]string `json:"properties"`
	Timestamp  int64             `json:"timestamp,omitzero"` // the property, in seconds
	Priority   uint8             `json:"priority,omitzero"`
	Headers    table             `json:"headers"`
	Body       value             `json:"body"`
}

func read(t *testing.T, name string) (f file) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &f))
	return f
}

// single is an object with one field that is on three lines.
var single = regexp.MustCompile(`\{\n *(".*": [^\[{\n]+)\n *\}`)

func (f *file) write(t *testing.T, name string) {
	t.Helper()
	slices.SortFunc(f.Messages, func(a, b kept) int {
		return cmp.Or(strings.Compare(a.Queue, b.Queue), strings.Compare(a.identity(), b.identity()))
	})
	text, err := json.MarshalIndent(f, "", " ")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name, append(single.ReplaceAll(text, []byte("{$1}")), '\n'), 0o644))
}

// identity returns the first line of a body. No two messages of a file have the same.
func identity(body []byte) string {
	id, _, _ := strings.Cut(string(body), "\n")
	return id
}

func (m *kept) identity() string { return identity(m.Body.of.([]byte)) }

// publishing returns what a client publishes to put the message back.
func (m *kept) publishing() amqp091.Publishing {
	p := amqp091.Publishing{Headers: amqp091.Table(m.Headers), Body: m.Body.of.([]byte),
		DeliveryMode: amqp091.Persistent, Priority: m.Priority}
	if m.Timestamp != 0 {
		p.Timestamp = time.Unix(m.Timestamp, 0)
	}
	for name, property := range map[string]*string{
		"content_type": &p.ContentType, "content_encoding": &p.ContentEncoding, "correlation_id": &p.CorrelationId,
		"reply_to": &p.ReplyTo, "expiration": &p.Expiration, "message_id": &p.MessageId, "type": &p.Type,
		"user_id": &p.UserId, "app_id": &p.AppId,
	} {
		*property = m.Properties[name]
	}
	return p
}

// A table has AMQP values with their types.
type table amqp091.Table

func (t table) MarshalJSON() ([]byte, error) {
	values := make(map[string]value, len(t))
	for name, v := range t {
		values[name] = value{v}
	}
	return json.Marshal(values)
}

func (t *table) UnmarshalJSON(text []byte) error {
	var values map[string]value
	*t = table{}
	err := json.Unmarshal(text, &values)
	for name, v := range values {
		(*t)[name] = v.of
	}
	return err
}

// A value is an AMQP value with its type: an object with one field, the name of the Go type in which amqp091-go has it,
// or one of these names.
type value struct{ of any }

func (v value) MarshalJSON() ([]byte, error) {
	kind, of := fmt.Sprintf("%T", v.of), v.of
	switch typed := v.of.(type) {
	case nil:
		kind = "nil"
	case time.Time:
		kind, of = "time", typed.Unix()
	case amqp091.Decimal:
		kind, of = "decimal", [2]int32{int32(typed.Scale), typed.Value}
	case string:
		if !utf8.ValidString(typed) {
			kind, of = "latin1", []byte(typed)
		}
	case []byte:
		kind = "bytes"
		if utf8.Valid(typed) {
			kind, of = "text", string(typed)
		}
	case amqp091.Table:
		kind, of = "table", table(typed)
	case []any:
		values := make([]value, len(typed))
		for i, element := range typed {
			values[i] = value{element}
		}
		kind, of = "array", values
	}
	return json.Marshal(map[string]any{kind: of})
}

// types are those whose JSON is that of their Go type.
var types = map[string]reflect.Type{}

func init() {
	for _, of := range []any{false, uint8(0), int8(0), int16(0), uint16(0), int32(0), uint32(0), int64(0), float32(0),
		float64(0), ""} {
		types[fmt.Sprintf("%T", of)] = reflect.TypeOf(of)
	}
}

func (v *value) UnmarshalJSON(text []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || len(object) != 1 {
		return fmt.Errorf("%s is no value with a type: %w", text, err)
	}
	for kind, raw := range object {
		return v.read(kind, raw)
	}
	return nil
}

func (v *value) read(kind string, raw []byte) (err error) {
	switch kind {
	case "nil":
	case "time":
		var seconds int64
		err = json.Unmarshal(raw, &seconds)
		v.of = time.Unix(seconds, 0)
	case "decimal":
		var parts [2]int32
		err = json.Unmarshal(raw, &parts)
		v.of = amqp091.Decimal{Scale: uint8(parts[0]), Value: parts[1]}
	case "latin1", "bytes":
		var text []byte
		err = json.Unmarshal(raw, &text)
		if v.of = text; kind == "latin1" {
			v.of = string(text)
		}
	case "text":
		var text string
		err = json.Unmarshal(raw, &text)
		v.of = []byte(text)
	case "table":
		var t table
		err = json.Unmarshal(raw, &t)
		v.of = amqp091.Table(t)
	case "array":
		var values []value
		err = json.Unmarshal(raw, &values)
		array := make([]any, len(values))
		for i, element := range values {
			array[i] = element.of
		}
		v.of = array
	default:
		if types[kind] == nil {
			return fmt.Errorf("the type %q is unknown", kind)
		}
		of := reflect.New(types[kind])
		err = json.Unmarshal(raw, of.Interface())
		v.of = of.Elem().Interface()
	}
	return err
}
