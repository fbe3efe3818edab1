package deadletter

import (
	"fmt"
	"time"

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

// needed are the fields of a line that are read.
var needed = []string{"body", "exchange", "headers", "properties", "queue", "routing_key"}

// parseLine reads what appendLine wrote. It also refuses what RabbitMQ would answer by closing the channel or the
// connection.
func parseLine(b []byte) (line, error) {
	reader := letterline.Reader[amqp091.Table, amqp091.Decimal]{Needed: needed, Longest: maxShortString}
	l, err := reader.Read(b)
	if err != nil {
		return line{}, err
	}
	d := amqp091.Delivery{Exchange: l.Exchange, RoutingKey: l.RoutingKey, Headers: l.Headers, Body: l.Body}
	d.Priority, _ = l.Properties["priority"].(uint8)
	d.DeliveryMode, _ = l.Properties["delivery_mode"].(uint8)
	d.Timestamp, _ = l.Properties["timestamp"].(time.Time)
	for name, property := range texts(&d) {
		*property, _ = l.Properties[name].(string)
	}
	if err := unfit.CheckExpiration(d.Expiration); err != nil { // an import without DryRun would find it only later
		return line{}, fmt.Errorf("properties.%w", err)
	}
	return line{l.Queue, l.Exchange, l.RoutingKey, same(&d)}, nil
}
