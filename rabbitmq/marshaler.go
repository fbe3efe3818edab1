package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

// Headers that carry over the retry what AMQP would change or refuse. They are believed only on what came back through the
// return exchange, and are never seen by the app.
const (
	userIDHeader     = "retry_user_id"     // a user-id other than the connection's closes the channel
	exchangeHeader   = "retry_exchange"    // what the message was published to in the first place
	routingKeyHeader = "retry_routing_key" // and with which key
	priorityHeader   = "retry_priority"    // on RabbitMQ 4.0 a prioritised message holds up the others of its tier
)

// errPhantom is what watermill-amqp reads from a channel whose consumer the broker cancelled: no delivery at all. The error
// makes it reconnect.
var errPhantom = errors.New("the broker cancelled the consumer: not a delivery")

// marshaler wraps the app's. It reads messages with headers that are not strings, gives handlers a retried message as it was
// the first time, and publishes a copy with all that the app's marshaler does not know.
type marshaler struct {
	app    Marshaler
	prefix naming.Prefix
}

// Unmarshal reads a delivery. What the app's marshaler cannot read is still handed on, marked, so that the middleware
// dead-letters it: an error would bring it back at once and for ever.
func (m marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	if delivery.Acknowledger == nil {
		return nil, errPhantom
	}
	original := m.restore(delivery)
	msg, err := m.unmarshal(original)
	if err != nil && hasTyped(original.Headers) {
		readable := original
		readable.Headers = stringsOf(original.Headers)
		msg, err = m.unmarshal(readable)
	}
	raw := err != nil
	if raw {
		msg = message.NewMessage("", original.Body)
		for key, value := range stringsOf(original.Headers) {
			msg.Metadata[key] = value.(string)
		}
		msg.Metadata[middleware.UnmarshalErrorKey] = textOf(err)
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	for key, value := range original.Headers { // the app's marshaler need not know metadata
		if text, ok := value.(string); ok && isRecord(key) {
			msg.Metadata[key] = text
		}
	}
	properties := propertiesOf(original, msg)
	properties.Raw = raw
	if encoded := properties.encode(); encoded != "" {
		msg.Metadata[middleware.PropertiesKey] = encoded
	}
	return msg, nil
}

func (m marshaler) unmarshal(delivery amqp091.Delivery) (msg *message.Message, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = errors.New("the marshaler panicked: " + textOf(recovered))
		}
	}()
	delivery.Headers = maps.Clone(delivery.Headers) // the app's marshaler may write into them
	msg, err = m.app.Unmarshal(delivery)
	if err == nil && msg == nil {
		err = errors.New("the marshaler returned no message")
	}
	return msg, err
}

// maxErrorText bounds what is kept of an error of the app's marshaler, in bytes.
const maxErrorText = 1024

// textOf is the text of an error, or of what somebody panicked with. The app's marshaler runs below no middleware that would
// recover: some values panic when asked, even for why they panicked.
func textOf(value any) (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T, which panics when it is printed", value)
		}
	}()
	text = fmt.Sprint(value)
	return strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
}

// restore undoes what the way over the tiers did to a delivery. The header table is copied where it has to change.
func (m marshaler) restore(delivery amqp091.Delivery) amqp091.Delivery {
	// Through the return exchange it comes back to be retried, through the retry exchange it became a dead letter.
	returned := delivery.Exchange == m.prefix.ReturnExchange() || delivery.Exchange == m.prefix.RetryExchange()
	strip := func(key string) bool { return isTransport(key) || returned && isBrokers(key) }

	for key := range delivery.Headers {
		if !strip(key) {
			continue
		}
		if returned {
			delivery.Exchange = headerText(delivery.Headers, exchangeHeader)
			if user := headerText(delivery.Headers, userIDHeader); user != "" {
				delivery.UserId = user
			}
			if priority, ok := delivery.Headers[priorityHeader].(byte); ok {
				delivery.Priority = priority
			}
			key, known := delivery.Headers[routingKeyHeader].(string)
			if !known {
				key, _ = naming.QueueOfKey(delivery.RoutingKey)
			}
			delivery.RoutingKey = key
		}
		headers := make(amqp091.Table, len(delivery.Headers))
		for key, value := range delivery.Headers {
			if !strip(key) {
				headers[key] = value
			}
		}
		delivery.Headers = headers
		break
	}
	return delivery
}

// Marshal makes the publishing of a copy: the app's own, with the properties of the delivery it was received as.
func (m marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	encoded, found := msg.Metadata[middleware.PropertiesKey]
	if found {
		plain := message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload)
		plain.Metadata = maps.Clone(msg.Metadata)
		delete(plain.Metadata, middleware.PropertiesKey)
		msg = plain
	}
	properties, err := decodeProperties(encoded)
	if err != nil {
		properties = deliveryProperties{} // not written by Unmarshal: a key of the same name
	}
	publishing, err := m.marshal(msg, properties.Raw)
	if err != nil {
		return amqp091.Publishing{}, fmt.Errorf("the app's marshaler: %w", err)
	}
	headers := make(amqp091.Table, len(publishing.Headers)+len(properties.Headers)+4)
	for key, value := range publishing.Headers {
		if isTransport(key) || isBrokers(key) {
			continue
		}
		if _, said := msg.Metadata[key]; value == "" && msg.UUID == "" && !said {
			continue // an empty UUID's header, which the message did not have
		}
		headers[key] = value
	}
	publishing.Headers = headers
	properties.apply(&publishing)
	for key, value := range msg.Metadata {
		if isRecord(key) {
			headers[key] = value
		}
	}
	if _, dead := msg.Metadata[middleware.DeadReasonKey]; !dead && publishing.Priority != 0 {
		headers[priorityHeader], publishing.Priority = publishing.Priority, 0
	}
	return publishing, nil
}

// marshal keeps what the app's marshaler could not read as it is: it did not make the payload, so it must not encode it.
func (m marshaler) marshal(msg *message.Message, raw bool) (amqp091.Publishing, error) {
	if !raw {
		return m.app.Marshal(msg)
	}
	headers := make(amqp091.Table, len(msg.Metadata))
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	return amqp091.Publishing{Body: msg.Payload, Headers: headers}, nil
}

// isTransport tells the headers and metadata that are the library's own and no business of the app's.
func isTransport(key string) bool {
	switch key {
	case publisher.IDHeader, userIDHeader, exchangeHeader, routingKeyHeader, priorityHeader,
		middleware.PropertiesKey, middleware.UnmarshalErrorKey:
		return true
	}
	return false
}

// isRecord tells the metadata that have to make the round trip whatever the app's marshaler makes of metadata.
func isRecord(key string) bool {
	switch key {
	case "reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned":
		return true
	}
	return strings.HasPrefix(key, "retry_") && !isTransport(key)
}

// isBrokers tells the headers with which the broker would count, route or drop a copy: the story of other deaths, delivery
// counts, and sender-selected routing. watermill-amqp v3 adds one of its own.
func isBrokers(key string) bool {
	switch key {
	case "x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC", "_watermill_amqp_redelivered":
		return true
	}
	return strings.HasPrefix(key, "x-first-death-") || strings.HasPrefix(key, "x-last-death-")
}

func hasTyped(headers amqp091.Table) bool {
	for _, value := range headers {
		if _, ok := value.(string); !ok {
			return true
		}
	}
	return false
}

// stringsOf is what an app's marshaler that knows only strings can read.
func stringsOf(headers amqp091.Table) amqp091.Table {
	texts := make(amqp091.Table, len(headers))
	for key, value := range headers {
		if _, ok := value.(string); ok && !isBrokers(key) {
			texts[key] = value
		}
	}
	return texts
}

func headerText(headers amqp091.Table, key string) string {
	text, _ := headers[key].(string)
	return text
}
