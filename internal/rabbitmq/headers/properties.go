package headers

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// properties are the parts of a delivery that its message does not have.
type properties struct {
	ContentType     string
	ContentEncoding string
	CorrelationID   string
	ReplyTo         string
	MessageID       string
	Type            string
	AppID           string
	UserID          string
	Exchange        string
	RoutingKey      string
	Priority        uint8
	Timestamp       time.Time
	Headers         amqp091.Table // those that are not strings, and strings that the app's marshaler left out
	Raw             bool          // the app's marshaler could not read the message
}

// The encoding is a sequence of fields: a byte for the field, then its value (see value.go).
const (
	fieldContentType = iota + 1
	fieldContentEncoding
	fieldCorrelationID
	fieldReplyTo
	fieldMessageID
	fieldType
	fieldAppID
	fieldUserID
	fieldExchange
	fieldRoutingKey
	fieldPriority
	fieldTimestamp
	fieldHeaders
	fieldRaw
)

func propertiesOf(d *amqp091.Delivery, msg *message.Message, headers []header) properties {
	p := properties{
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, CorrelationID: d.CorrelationId,
		ReplyTo:   d.ReplyTo,
		MessageID: d.MessageId, Type: d.Type, AppID: d.AppId, UserID: d.UserId, Priority: d.Priority,
		Timestamp: d.Timestamp,
	}
	if d.Exchange != "" { // on the default exchange the routing key is the queue's name, which a retry does not change
		p.Exchange, p.RoutingKey = d.Exchange, d.RoutingKey
	}
	for _, h := range headers {
		if isBroker(h.key) || isTransport(h.key) {
			continue
		}
		if text, ok := h.value.(string); ok && (msg.Metadata[h.key] == text || msg.UUID == text) {
			continue
		}
		if p.Headers == nil {
			p.Headers = amqp091.Table{}
		}
		p.Headers[h.key] = h.value
	}
	return p
}

// apply gives a copy the properties of the delivery that it is made of.
func (p *properties) apply(publishing *amqp091.Publishing) {
	set := func(property *string, value string) {
		if value != "" {
			*property = value
		}
	}
	set(&publishing.ContentType, p.ContentType)
	set(&publishing.ContentEncoding, p.ContentEncoding)
	set(&publishing.CorrelationId, p.CorrelationID)
	set(&publishing.ReplyTo, p.ReplyTo)
	set(&publishing.MessageId, p.MessageID)
	set(&publishing.Type, p.Type)
	set(&publishing.AppId, p.AppID)
	if p.Priority != 0 {
		publishing.Priority = p.Priority
	}
	if !p.Timestamp.IsZero() {
		publishing.Timestamp = p.Timestamp
	}
	for key, value := range p.Headers {
		_, set := publishing.Headers[key]
		// the app's marshaler may have made a string of a header of another type
		if _, text := value.(string); !text || !set {
			publishing.Headers[key] = value
		}
	}
	header := func(key, value string) {
		if value != "" {
			publishing.Headers[key] = value
		}
	}
	header(exchangeHeader, p.Exchange)
	if p.Exchange != "" {
		publishing.Headers[routingKeyHeader] = p.RoutingKey
	}
	publishing.UserId = p.UserID
	publishing.DeliveryMode = amqp091.Persistent
}

// texts returns the properties that are texts, by their field. Other fields are nil.
func (p *properties) texts() [fieldRoutingKey + 1]*string {
	return [...]*string{
		fieldContentType: &p.ContentType, fieldContentEncoding: &p.ContentEncoding,
		fieldCorrelationID: &p.CorrelationID,
		fieldReplyTo:       &p.ReplyTo, fieldMessageID: &p.MessageID, fieldType: &p.Type, fieldAppID: &p.AppID,
		fieldUserID: &p.UserID, fieldExchange: &p.Exchange, fieldRoutingKey: &p.RoutingKey,
	}
}

// isShared reports whether many messages can have exactly these properties.
func (p *properties) isShared() bool {
	return p.MessageID == "" && p.CorrelationID == "" && p.ReplyTo == "" && p.Timestamp.IsZero() && p.Headers == nil
}

// appendTo appends the encoding, which is empty for a delivery without any of these properties.
func (p *properties) appendTo(b []byte) []byte {
	for field, value := range p.texts() {
		if value != nil && *value != "" {
			b = appendText(append(b, byte(field)), *value)
		}
	}
	if p.Priority != 0 {
		b = append(b, fieldPriority, 'B', p.Priority)
	}
	if !p.Timestamp.IsZero() {
		b = appendTime(append(b, fieldTimestamp), p.Timestamp)
	}
	if len(p.Headers) > 0 {
		b = AppendValue(append(b, fieldHeaders), p.Headers)
	}
	if p.Raw {
		b = append(b, fieldRaw, 't', 1)
	}
	return b
}

// decode reads what appendTo wrote. Any other text leaves p empty: the app uses the key for something else.
func (p *properties) decode(encoded string) {
	if decoded, err := decodeProperties(encoded); err == nil {
		*p = decoded
	}
}

func decodeProperties(encoded string) (properties, error) {
	var p properties
	texts := p.texts()
	d := decoder{rest: []byte(encoded)}
	for len(d.rest) > 0 && d.err == nil {
		field := d.byte()
		value := d.value(maxDepth)
		ok := false
		switch field {
		case fieldPriority:
			p.Priority, ok = value.(byte)
		case fieldTimestamp:
			p.Timestamp, ok = value.(time.Time)
		case fieldHeaders:
			p.Headers, ok = value.(amqp091.Table)
		case fieldRaw:
			p.Raw, ok = value.(bool)
		default:
			if int(field) < len(texts) && texts[field] != nil {
				*texts[field], ok = value.(string)
			}
		}
		if !ok && d.err == nil {
			d.err = fmt.Errorf("%w: field %d holds %T", errEncoding, field, value)
		}
	}
	return p, d.err
}
