package rabbitmq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// deliveryProperties is what a delivery carries and its message does not. It travels from Unmarshal to Marshal as
// one metadata value and never leaves the process.
type deliveryProperties struct {
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

func propertiesOf(d amqp091.Delivery, msg *message.Message) deliveryProperties {
	p := deliveryProperties{
		ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo,
		MessageID: d.MessageId, Type: d.Type, AppID: d.AppId, UserID: d.UserId, Priority: d.Priority, Timestamp: d.Timestamp,
	}
	if d.Exchange != "" { // the default exchange's key is the queue's name, which the way back keeps
		p.Exchange, p.RoutingKey = d.Exchange, d.RoutingKey
	}
	for key, value := range d.Headers {
		if isBrokers(key) || isTransport(key) {
			continue
		}
		if text, ok := value.(string); ok && (msg.Metadata[key] == text || msg.UUID == text) {
			continue
		}
		if p.Headers == nil {
			p.Headers = amqp091.Table{}
		}
		p.Headers[key] = value
	}
	return p
}

// apply gives a publishing the properties of the delivery it is a copy of.
func (p deliveryProperties) apply(publishing *amqp091.Publishing) {
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
		_, said := publishing.Headers[key]
		if _, text := value.(string); !text || !said { // a header that is no string was one for the app's marshaler only
			publishing.Headers[key] = value
		}
	}
	header := func(key, value string) {
		if value != "" {
			publishing.Headers[key] = value
		}
	}
	header(userIDHeader, p.UserID)
	header(exchangeHeader, p.Exchange)
	if p.Exchange != "" {
		publishing.Headers[routingKeyHeader] = p.RoutingKey
	}
	publishing.UserId = ""
	publishing.Expiration = "" // a message's own would end the wait on a tier early
	publishing.DeliveryMode = amqp091.Persistent
}

// Fields of the encoding: a tag, then a value. Values have the tags of AMQP's field types.
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

// maxDepth bounds nested tables: deeper ones do not come from a broker.
const maxDepth = 64

var errEncoding = errors.New("not an encoding of AMQP properties")

func (p *deliveryProperties) texts() map[byte]*string {
	return map[byte]*string{
		fieldContentType: &p.ContentType, fieldContentEncoding: &p.ContentEncoding, fieldCorrelationID: &p.CorrelationID,
		fieldReplyTo: &p.ReplyTo, fieldMessageID: &p.MessageID, fieldType: &p.Type, fieldAppID: &p.AppID,
		fieldUserID: &p.UserID, fieldExchange: &p.Exchange, fieldRoutingKey: &p.RoutingKey,
	}
}

// encode is empty where there is nothing to tell.
func (p deliveryProperties) encode() string {
	var b []byte
	text := func(field byte, value string) {
		if value != "" {
			b = appendValue(append(b, field), value)
		}
	}
	text(fieldContentType, p.ContentType)
	text(fieldContentEncoding, p.ContentEncoding)
	text(fieldCorrelationID, p.CorrelationID)
	text(fieldReplyTo, p.ReplyTo)
	text(fieldMessageID, p.MessageID)
	text(fieldType, p.Type)
	text(fieldAppID, p.AppID)
	text(fieldUserID, p.UserID)
	text(fieldExchange, p.Exchange)
	text(fieldRoutingKey, p.RoutingKey)
	if p.Priority != 0 {
		b = appendValue(append(b, fieldPriority), p.Priority)
	}
	if !p.Timestamp.IsZero() {
		b = appendValue(append(b, fieldTimestamp), p.Timestamp)
	}
	if len(p.Headers) > 0 {
		b = appendValue(append(b, fieldHeaders), p.Headers)
	}
	if p.Raw {
		b = appendValue(append(b, fieldRaw), true)
	}
	return string(b)
}

func decodeProperties(encoded string) (deliveryProperties, error) {
	var p deliveryProperties
	if encoded == "" {
		return p, nil
	}
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
			var text *string
			if text, ok = texts[field]; ok {
				*text, ok = value.(string)
			}
		}
		if !ok && d.err == nil {
			d.err = fmt.Errorf("%w: field %d holds %T", errEncoding, field, value)
		}
	}
	return p, d.err
}

// appendValue encodes the types that amqp091-go reads from the wire. Another type is kept as its text, rather than lost.
func appendValue(b []byte, value any) []byte {
	length := func(tag byte, n int) []byte { return binary.AppendUvarint(append(b, tag), uint64(n)) }
	fixed := func(tag byte, bits uint64) []byte { return binary.BigEndian.AppendUint64(append(b, tag), bits) }
	switch v := value.(type) {
	case nil:
		return append(b, 'V')
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case byte:
		return append(b, 'B', v)
	case int8:
		return append(b, 'b', byte(v))
	case int16:
		return fixed('s', uint64(v))
	case uint16:
		return fixed('u', uint64(v))
	case int32:
		return fixed('I', uint64(v))
	case uint32:
		return fixed('i', uint64(v))
	case int64:
		return fixed('l', uint64(v))
	case int:
		return fixed('l', uint64(v))
	case uint64:
		return fixed('L', v)
	case float32:
		return fixed('f', uint64(math.Float32bits(v)))
	case float64:
		return fixed('d', math.Float64bits(v))
	case time.Time:
		return fixed('T', uint64(v.Unix()))
	case amqp091.Decimal:
		return binary.BigEndian.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case string:
		return append(length('S', len(v)), v...)
	case []byte:
		return append(length('x', len(v)), v...)
	case []any:
		b = length('A', len(v))
		for _, element := range v {
			b = appendValue(b, element)
		}
		return b
	case amqp091.Table:
		b = length('F', len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) { // the same headers make the same text
			b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
			b = appendValue(b, v[key])
		}
		return b
	default:
		text := fmt.Sprint(v)
		return append(length('S', len(text)), text...)
	}
}

// decoder reads what appendValue wrote; its first error ends it.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail() { d.err, d.rest = errEncoding, nil }

func (d *decoder) take(n uint64) []byte {
	if d.err != nil || n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte {
	if taken := d.take(1); taken != nil {
		return taken[0]
	}
	return 0
}

func (d *decoder) bits() uint64 {
	if taken := d.take(8); taken != nil {
		return binary.BigEndian.Uint64(taken)
	}
	return 0
}

func (d *decoder) length() uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 || n > uint64(len(d.rest)) { // no element is shorter than a byte
		d.fail()
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) value(depth int) any {
	if depth == 0 {
		d.fail()
	}
	if d.err != nil {
		return nil
	}
	switch tag := d.byte(); tag {
	case 'V':
		return nil
	case 't':
		return d.byte() != 0
	case 'B':
		return d.byte()
	case 'b':
		return int8(d.byte())
	case 's':
		return int16(d.bits())
	case 'u':
		return uint16(d.bits())
	case 'I':
		return int32(d.bits())
	case 'i':
		return uint32(d.bits())
	case 'l':
		return int64(d.bits())
	case 'L':
		return d.bits()
	case 'f':
		return math.Float32frombits(uint32(d.bits()))
	case 'd':
		return math.Float64frombits(d.bits())
	case 'T':
		return time.Unix(int64(d.bits()), 0)
	case 'D':
		scale := d.byte()
		if digits := d.take(4); digits != nil {
			return amqp091.Decimal{Scale: scale, Value: int32(binary.BigEndian.Uint32(digits))}
		}
	case 'S':
		return string(d.take(d.length()))
	case 'x':
		return append([]byte{}, d.take(d.length())...)
	case 'A':
		array := []any{}
		for range d.length() {
			array = append(array, d.value(depth-1))
		}
		return array
	case 'F':
		table := amqp091.Table{}
		for range d.length() {
			key := string(d.take(d.length()))
			table[key] = d.value(depth - 1)
		}
		return table
	default:
		d.fail()
	}
	return nil
}
