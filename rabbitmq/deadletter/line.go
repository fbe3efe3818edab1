package deadletter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
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
	table, err := letterline.Table(d.Headers)
	if err != nil {
		return b, fmt.Errorf("letter %q cannot be exported: %w", l.ID, err)
	}
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
	line := letterline.Line{
		ID: l.ID, Queue: letterline.EncodeText(l.Queue), Target: l.Target, Kind: string(l.Kind), Record: l.Record,
		Exchange:   letterline.EncodeText(d.Exchange),
		RoutingKey: letterline.EncodeText(d.RoutingKey), Properties: properties, Headers: table, Body: d.Body,
	}
	if b, err = line.Append(b); err != nil {
		return b, fmt.Errorf("letter %q cannot be exported: %w", l.ID, err)
	}
	return b, nil
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

// parseLine reads what appendLine wrote. It refuses what is no such line, and what RabbitMQ would answer by closing
// the channel or the connection. Its errors name the field.
func parseLine(b []byte) (line, error) {
	if !utf8.Valid(b) {
		return line{}, errors.New("the line is not valid UTF-8")
	}
	r, d, l := &reader{}, amqp091.Delivery{}, line{}
	fields := r.object("", b)
	for _, name := range []string{"body", "exchange", "headers", "properties", "queue", "routing_key"} {
		if _, found := fields[name]; !found {
			r.fail("the field %q is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch raw := fields[name]; name {
		case "id", "target", "kind", "record", "text":
		case "queue":
			l.Queue = r.shortText(name, raw)
		case "exchange":
			l.Exchange = r.shortText(name, raw)
		case "routing_key":
			l.RoutingKey = r.shortText(name, raw)
		case "body":
			d.Body = r.bytes(name, raw)
		case "properties":
			r.properties(name, raw, &d)
		case "headers":
			d.Headers = r.table(name, raw, 0)
		default:
			r.fail("the field %q is unknown", name)
		}
	}
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
