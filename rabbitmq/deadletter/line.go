package deadletter

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// longestText is how many bytes of a body a line also has as text, for readers of the file.
const longestText = 4096

// maxShortString bounds names and properties: AMQP 0-9-1 sends them as short strings.
const maxShortString = 255

// exported is a line of JSON. ID, Target, Kind, Record and Text are for readers of the file: parseLine ignores them.
type exported struct {
	ID         string         `json:"id"`
	Queue      string         `json:"queue"`
	Target     string         `json:"target,omitzero"`
	Kind       letters.Kind   `json:"kind"`
	Record     retry.Record   `json:"record"`
	Exchange   string         `json:"exchange"`
	RoutingKey string         `json:"routing_key"`
	Properties map[string]any `json:"properties"`
	Headers    map[string]any `json:"headers"`
	Body       []byte         `json:"body"`
	Text       string         `json:"text,omitzero"`
}

// appendLine appends a letter as one line of JSON.
func appendLine(b []byte, d *amqp091.Delivery, l *letters.Letter) ([]byte, error) {
	table, err := encodeTable("headers", d.Headers, 0)
	if err != nil {
		return b, fmt.Errorf("letter %q cannot be exported: %w", l.ID, err)
	}
	properties := map[string]any{}
	p := publishing(d)
	for name, property := range texts(&p) {
		if *property != "" {
			properties[name] = encodeText(*property)
		}
	}
	if p.Priority != 0 {
		properties["priority"] = p.Priority
	}
	if p.DeliveryMode != 0 {
		properties["delivery_mode"] = p.DeliveryMode
	}
	if !p.Timestamp.IsZero() {
		properties["timestamp"] = p.Timestamp.Unix()
	}
	line, err := json.Marshal(exported{
		ID: l.ID, Queue: encodeText(l.Queue), Target: l.Target, Kind: l.Kind, Record: l.Record,
		Exchange:   encodeText(d.Exchange),
		RoutingKey: encodeText(d.RoutingKey), Properties: properties, Headers: table,
		Body: append([]byte{}, d.Body...), // an empty one is no null
		Text: readable(d.Body),
	})
	if err != nil {
		return b, fmt.Errorf("letter %q cannot be exported: %w", l.ID, err)
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

// texts returns the properties that are texts, by their names.
func texts(p *amqp091.Publishing) map[string]*string {
	return map[string]*string{
		"content_type": &p.ContentType, "content_encoding": &p.ContentEncoding, "correlation_id": &p.CorrelationId,
		"reply_to": &p.ReplyTo, "expiration": &p.Expiration, "message_id": &p.MessageId, "type": &p.Type,
		"user_id": &p.UserId, "app_id": &p.AppId,
	}
}

// A line is a letter that was exported. Publishing is what same returns for its delivery.
type line struct {
	Queue, Exchange, RoutingKey string
	Publishing                  amqp091.Publishing
}

// parseLine reads what appendLine wrote. It refuses what is no such line, and what RabbitMQ would answer by closing
// the channel or the connection. Its errors name the field.
func parseLine(b []byte) (line, error) {
	if !utf8.Valid(b) {
		return line{}, errors.New("the line is not valid UTF-8")
	}
	fields, err := object("", b)
	if err != nil {
		return line{}, err
	}
	d := amqp091.Delivery{}
	l := line{}
	read := map[string]func(at string, raw json.RawMessage) error{
		"queue":       shortText(&l.Queue),
		"exchange":    shortText(&l.Exchange),
		"routing_key": shortText(&l.RoutingKey),
		"body": func(at string, raw json.RawMessage) (err error) {
			d.Body, err = parseBytes(at, raw)
			return err
		},
		"properties": func(at string, raw json.RawMessage) error { return parseProperties(at, raw, &d) },
		"headers": func(at string, raw json.RawMessage) (err error) {
			d.Headers, err = parseTable(at, raw, 0)
			return err
		},
	}
	for name := range read {
		if _, found := fields[name]; !found {
			return line{}, fmt.Errorf("the field %q is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch name {
		case "id", "target", "kind", "record", "text":
			continue
		}
		parse, known := read[name]
		if !known {
			return line{}, fmt.Errorf("the field %q is unknown", name)
		}
		if err := parse(name, fields[name]); err != nil {
			return line{}, err
		}
	}
	if l.Queue == "" {
		return line{}, errors.New("queue is empty: it must be the name of a queue")
	}
	d.Exchange, d.RoutingKey = l.Exchange, l.RoutingKey
	l.Publishing = same(&d)
	return l, nil
}

func parseProperties(at string, raw json.RawMessage, d *amqp091.Delivery) error {
	fields, err := object(at, raw)
	if err != nil {
		return err
	}
	var p amqp091.Publishing
	properties := texts(&p)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at, raw := at+"."+name, fields[name]
		var number int64
		switch name {
		case "priority":
			number, err = parseNumber(at, raw, 0, 255)
			d.Priority = uint8(number)
		case "delivery_mode":
			number, err = parseNumber(at, raw, 1, 2)
			d.DeliveryMode = uint8(number)
		case "timestamp":
			number, err = parseNumber(at, raw, minInt64, maxInt64)
			d.Timestamp = time.Unix(number, 0)
		default:
			property, known := properties[name]
			if !known {
				return fmt.Errorf("%s is unknown", at)
			}
			err = shortText(property)(at, raw)
		}
		if err != nil {
			return err
		}
	}
	if err := unfit.CheckExpiration(p.Expiration); err != nil { // an import without DryRun would find it only later
		return fmt.Errorf("%s.%w", at, err)
	}
	d.ContentType, d.ContentEncoding, d.CorrelationId = p.ContentType, p.ContentEncoding, p.CorrelationId
	d.ReplyTo, d.Expiration, d.MessageId = p.ReplyTo, p.Expiration, p.MessageId
	d.Type, d.UserId, d.AppId = p.Type, p.UserId, p.AppId
	return nil
}

// base64Prefix begins a text that is not valid UTF-8, and so cannot be a text of JSON.
const base64Prefix = "base64:"

func encodeText(text string) string {
	if utf8.ValidString(text) && !strings.HasPrefix(text, base64Prefix) {
		return text
	}
	return base64Prefix + base64.StdEncoding.EncodeToString([]byte(text))
}

func decodeText(at, text string) (string, error) {
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
