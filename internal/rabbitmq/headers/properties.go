package headers

import (
	"cmp"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// properties are the parts of a delivery that its message does not have.
type properties struct {
	texts     [numTexts]string
	Priority  uint8
	Timestamp time.Time
	Headers   amqp091.Table // the headers that are not strings, and strings that the app's marshaler left out
	Raw       bool          // the app's marshaler could not read the message
}

// textNames are those of the properties that are texts, and that a copy has as they were.
var textNames = [...]string{"content-type", "content-encoding", "type", "app-id",
	"correlation-id", "reply-to", "message-id"}

// ofMany is how many of them have the same text in many messages.
const ofMany = 4

// The other texts have no property of a copy.
const (
	textUserID = len(textNames) + iota
	textExchange
	textRoutingKey
	numTexts
)

// Fields of the encoding besides the texts, each of which has its index: a byte for the field, then its value (see
// value.go).
const (
	fieldPriority = numTexts + iota
	fieldTimestamp
	fieldHeaders
	fieldRaw
)

// textsIn returns the texts of a delivery, and textsOf those of a publishing, in the order of textNames.
func textsIn(d *amqp091.Delivery) [len(textNames)]*string {
	return [...]*string{&d.ContentType, &d.ContentEncoding, &d.Type, &d.AppId, &d.CorrelationId, &d.ReplyTo,
		&d.MessageId}
}

func textsOf(p *amqp091.Publishing) [len(textNames)]*string {
	return [...]*string{&p.ContentType, &p.ContentEncoding, &p.Type, &p.AppId, &p.CorrelationId, &p.ReplyTo,
		&p.MessageId}
}

func propertiesOf(d *amqp091.Delivery, msg *message.Message, headers []header) properties {
	p := properties{Priority: d.Priority, Timestamp: d.Timestamp}
	for i, text := range textsIn(d) {
		p.texts[i] = *text
	}
	p.texts[textUserID] = d.UserId
	if d.Exchange != "" { // on the default exchange the routing key is the queue's name, which a retry does not change
		p.texts[textExchange], p.texts[textRoutingKey] = d.Exchange, d.RoutingKey
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
	for i, text := range textsOf(publishing) {
		*text = cmp.Or(p.texts[i], *text)
	}
	publishing.Priority = cmp.Or(p.Priority, publishing.Priority)
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
	if from := p.texts[textExchange]; from != "" {
		publishing.Headers[exchangeHeader], publishing.Headers[routingKeyHeader] = from, p.texts[textRoutingKey]
	}
	publishing.UserId = p.texts[textUserID]
	publishing.DeliveryMode = amqp091.Persistent
}

// isShared reports whether many messages can have exactly these properties.
func (p *properties) isShared() bool {
	for _, text := range p.texts[ofMany:len(textNames)] {
		if text != "" {
			return false
		}
	}
	return p.Timestamp.IsZero() && p.Headers == nil
}

// appendTo appends the encoding, which is empty for a delivery without any of these properties.
func (p *properties) appendTo(b []byte) []byte {
	for field, text := range p.texts {
		if text != "" {
			b = appendText(append(b, byte(field)), text)
		}
	}
	if p.Priority != 0 {
		b = append(b, byte(fieldPriority), 'B', p.Priority)
	}
	if !p.Timestamp.IsZero() {
		b = appendTime(append(b, byte(fieldTimestamp)), p.Timestamp)
	}
	if len(p.Headers) > 0 {
		b = AppendValue(append(b, byte(fieldHeaders)), p.Headers)
	}
	if p.Raw {
		b = append(b, byte(fieldRaw), 't', 1)
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
	d := decoder{rest: []byte(encoded)}
	for len(d.rest) > 0 && d.err == nil {
		field := int(d.byte())
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
			if field < numTexts {
				p.texts[field], ok = value.(string)
			}
		}
		if !ok && d.err == nil {
			d.err = fmt.Errorf("%w: field %d holds %T", errEncoding, field, value)
		}
	}
	return p, d.err
}
