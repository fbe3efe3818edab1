package deadletter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/letterline"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
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
	p := headers.Publishing(d)
	for name, property := range texts(&p) {
		if *property != "" {
			properties[name] = letterline.EncodeText(*property)
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
