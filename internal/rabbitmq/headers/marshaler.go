package headers

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// errPhantom: when the broker cancels a consumer, watermill-amqp reads an empty delivery from the closed channel. The
// error makes it reconnect.
var errPhantom = errors.New("the broker cancelled the consumer: not a delivery")

// maxErrorText is how many bytes of an error of the app's marshaler are kept.
const maxErrorText = 1024

// marshaler wraps the app's own.
type marshaler struct {
	app app.Marshaler
	// uuidKey is the header of the UUID where the app's marshaler is an app.Plain. Else it is empty.
	uuidKey string
	prefix  naming.Prefix
	// letters: it reads the dead letters of every prefix. The middleware and the broker both publish them with the key
	// of naming.DeadKey, and the default exchange, whose key is the name of the queue, has no name.
	letters bool
	shared  shared // the encodings of properties that many messages have
}

// New returns a marshaler around the app's own, for work queues. Its Unmarshal returns an error only for what is not a
// delivery. A message that the app's marshaler cannot read has the key recordkey.UnmarshalError: watermill-amqp
// would answer an error with a requeue, and the broker would deliver the message again at once, without end.
func New(own app.Marshaler, prefix naming.Prefix) app.Marshaler { return newMarshaler(own, prefix) }

func newMarshaler(own app.Marshaler, prefix naming.Prefix) *marshaler {
	return &marshaler{app: own, uuidKey: plainKey(own), prefix: prefix}
}

// published reports whether the library, or the broker on its behalf, published a delivery. Only then are its headers
// read.
func (m *marshaler) published(exchange, routingKey string) bool {
	if m.letters {
		return exchange != "" && naming.IsDeadKey(routingKey)
	}
	// Retries come through a return exchange, dead letters through the retry exchange.
	return exchange == m.prefix.RetryExchange() || m.prefix.IsReturn(exchange)
}

func (m *marshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	if delivery.Acknowledger == nil {
		pause := wire.Backoff{Initial: wire.AfterDeletion}
		time.Sleep(pause.Next()) // afterwards watermill-amqp's subscriber declares the queue again
		return nil, errPhantom
	}
	if redelivered, counted := delivery.Headers["x-delivery-count"].(int64); counted && redelivered == 0 {
		// RabbitMQ 3.10 has it in every delivery: other marshalers than ours refuse a number
		delete(delivery.Headers, "x-delivery-count")
	}
	if m.uuidKey != "" {
		if msg := m.readPlain(&delivery); msg != nil {
			return msg, nil
		}
	}
	folded := text(delivery.Headers, recordHeader)
	m.restore(&delivery)
	s := borrow(delivery.Headers)
	defer s.giveBack()
	msg, err := m.unmarshal(delivery, s)
	raw := err != nil
	if raw {
		msg = message.NewMessage("", delivery.Body)
		for key, value := range s.strings() {
			msg.Metadata[key] = value.(string)
		}
		msg.Metadata[recordkey.UnmarshalError] = errorText(err)
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	for _, h := range s.headers { // the app's marshaler may drop metadata
		if text, ok := h.value.(string); ok && recordKeys[h.key] {
			msg.Metadata[h.key] = text
		}
	}
	if folded != "" { // from any exchange: an orphan or a dead letter may be redriven
		writeFolded(msg, folded)
	}
	if encoded := m.encodeProperties(&delivery, msg, raw, s); encoded != "" {
		msg.Metadata[recordkey.Properties] = encoded
	}
	return msg, nil
}

// writeFolded writes a folded record into the metadata. It is a function of its own, as encodeProperties, so that the
// stack of Unmarshal is small: a worker of the subscriber with a large stack loses it in each garbage collection, and
// grows it again.
//
//go:noinline
func writeFolded(msg *message.Message, folded string) {
	if r, ok := unfold(folded); ok {
		msg.Metadata = r.write(msg.Metadata)
	}
}

//go:noinline
func (m *marshaler) encodeProperties(delivery *amqp091.Delivery, msg *message.Message, raw bool, s *scratch) string {
	p := propertiesOf(delivery, msg, s.headers)
	p.Raw = raw
	s.encoding = p.appendTo(s.encoding[:0])
	if p.isShared() {
		return m.shared.text(s.encoding)
	}
	return string(s.encoding)
}

// unmarshal calls the app's marshaler, and a second time with the string headers only if it may have failed because of
// the others. It may write into the headers that it gets, so s has those of the delivery.
func (m *marshaler) unmarshal(delivery amqp091.Delivery, s *scratch) (*message.Message, error) {
	if !s.typed {
		return m.call(delivery)
	}
	delivery.Headers = maps.Clone(delivery.Headers) // the subscriber reads the broker's counts
	msg, err := m.call(delivery)
	if err != nil {
		delivery.Headers = s.strings()
		msg, err = m.call(delivery)
	}
	return msg, err
}

// call calls the app's marshaler and returns its panic as an error: watermill-amqp calls marshalers outside of all
// middleware, so nothing else would recover it.
func (m *marshaler) call(delivery amqp091.Delivery) (msg *message.Message, err error) {
	panicked := panics.Call(func() { msg, err = m.app.Unmarshal(delivery) })
	switch {
	case panicked != nil:
		err = errors.New("the marshaler panicked: " + errorText(panicked.Value))
	case err != nil:
	case msg == nil:
		err = errors.New("the marshaler returned no message")
	case msg.Acked() == nil: // it has not used message.NewMessage: a subscriber would never see the ack
		made := message.NewMessage(msg.UUID, msg.Payload)
		made.Metadata, msg = msg.Metadata, made
	}
	return msg, err
}

// errorText is the text of an error, or of the value of a panic. Some values panic again when they are printed.
func errorText(value any) (text string) {
	if panics.Call(func() { text = fmt.Sprint(value) }) != nil {
		return fmt.Sprintf("%T, which panics when it is printed", value)
	}
	return strings.ToValidUTF8(text[:min(len(text), maxErrorText)], "")
}

// restore gives a delivery the headers and properties that the message had before it was retried. It copies the headers
// only where they have to change.
func (m *marshaler) restore(delivery *amqp091.Delivery) {
	ours := m.published(delivery.Exchange, delivery.RoutingKey)
	foreign := 0
	keep := func(key string) bool { return !isTransport(key) && !(ours && isBroker(key)) }
	for key := range delivery.Headers {
		if keep(key) {
			foreign++
		}
	}
	if foreign == len(delivery.Headers) {
		return
	}
	headers := make(amqp091.Table, foreign)
	for key, value := range delivery.Headers {
		if keep(key) {
			headers[key] = value
		}
	}
	m.restoreProperties(delivery, headers, ours)
	delivery.Headers = headers
}

// restoreProperties reads the headers of the library, and writes those that the app had into the table. ours: the
// delivery is a retry. A redriven message comes through the default exchange, where any publisher can write them: what
// the broker has vouched for is not restored.
func (m *marshaler) restoreProperties(delivery *amqp091.Delivery, to amqp091.Table, ours bool) {
	headers := delivery.Headers
	if !ours {
		if delivery.Exchange != "" || text(headers, recordkey.Redriven) == "" {
			return
		}
		unfit.Restore(delivery, to, headers, false)
		if exchange := text(headers, exchangeHeader); exchange != "" {
			delivery.Exchange, delivery.RoutingKey = exchange, text(headers, routingKeyHeader)
		}
		return
	}
	unfit.Restore(delivery, to, headers, true)
	delivery.Exchange = text(headers, exchangeHeader)
	key, known := headers[routingKeyHeader].(string)
	if !known {
		key, _ = naming.QueueOfKey(delivery.RoutingKey)
	}
	delivery.RoutingKey = key
}

// Marshal returns the publishing that the app's marshaler makes, or a raw one for a dead letter that it cannot marshal,
// with the properties of the delivery that the message came from. The record of a message that waits is folded, and the
// app's marshaler does not see it: each of its keys would be copied three times.
func (m *marshaler) Marshal(msg *message.Message) (publishing amqp091.Publishing, err error) {
	var p properties
	if encoded := msg.Metadata[recordkey.Properties]; encoded != "" {
		p.decode(encoded)
	}
	var r record
	rawReason := ""
	_, dead := msg.Metadata[recordkey.DeadReason]
	folds := false
	if !dead {
		for key, value := range msg.Metadata {
			if field := fieldOf(key); field >= 0 && value != "" {
				r[field], folds = value, true
			}
		}
	}
	rest := func(key, value string) bool { // is neither folded nor the marshaler's own
		return key != recordkey.Properties && (dead || value == "" || fieldOf(key) < 0)
	}
	if m.uuidKey != "" && !p.Raw {
		publishing = m.writePlain(msg, rest)
	} else if publishing, rawReason, err = m.write(msg, p.Raw, dead, rest); err != nil {
		return publishing, err
	}
	headers := publishing.Headers
	p.apply(&publishing)
	for key, value := range msg.Metadata {
		if rest(key, value) && recordKeys[key] {
			headers[key] = value
		}
	}
	if folds {
		for key := range p.Headers {
			if field := fieldOf(key); field >= 0 && r[field] != "" {
				delete(headers, key) // of the app, with another type
			}
		}
		headers[recordHeader] = r.fold()
	}
	if rawReason != "" {
		headers[rawHeader] = rawReason
	}
	as := unfit.Waiting
	if dead {
		as = unfit.Dead
	}
	unfit.Move(&publishing, as, "")
	if why := msg.Metadata[recordkey.LeftOff]; dead && why != "" {
		var off string
		publishing, off = lastForm(publishing, msg, why)
		msg.Metadata[recordkey.LeftOff] = off // the middleware logs it
	}
	return publishing, nil
}

// write returns the publishing of the app's marshaler, with a copy of its headers. A dead letter that it cannot marshal
// is raw, and rawReason is why.
func (m *marshaler) write(
	msg *message.Message, raw, dead bool, rest func(key, value string) bool,
) (publishing amqp091.Publishing, rawReason string, err error) {
	plain := &message.Message{UUID: msg.UUID, Payload: msg.Payload, Metadata: message.Metadata{}}
	plain.SetContext(msg.Context())
	for key, value := range msg.Metadata {
		if rest(key, value) {
			plain.Metadata[key] = value
		}
	}
	if raw { // the app's marshaler could not read the payload: it would encode what is encoded already
		publishing = rawPublishing(plain)
	} else if publishing, err = m.marshal(plain); err != nil {
		if !dead || !isLasting(err) {
			return amqp091.Publishing{}, "", err
		}
		publishing, rawReason = rawPublishing(plain), err.Error()
		if msg.UUID != "" {
			publishing.Headers[publisher.UUIDHeader] = msg.UUID
		}
	}
	headers := make(amqp091.Table, len(publishing.Headers)+moreHeaders)
	for key, value := range publishing.Headers {
		if isTransport(key) || isBroker(key) {
			continue
		}
		if _, set := plain.Metadata[key]; value == "" && msg.UUID == "" && !set {
			continue // the header of an empty UUID, which the delivery did not have
		}
		headers[key] = value
	}
	publishing.Headers = headers
	return publishing, rawReason, nil
}

// moreHeaders is how many headers a copy usually has besides those of the app.
const moreHeaders = 5

// marshal calls the app's marshaler and returns its panic as an error.
func (m *marshaler) marshal(msg *message.Message) (publishing amqp091.Publishing, err error) {
	if panicked := panics.Call(func() { publishing, err = m.app.Marshal(msg) }); panicked != nil {
		return publishing, &marshalError{text: "the app's marshaler panicked: " + errorText(panicked.Value)}
	}
	if err != nil {
		err = &marshalError{"the app's marshaler: " + errorText(err), err}
	}
	return publishing, err
}

// marshalError has its text from the beginning: to print the error of an app can panic.
type marshalError struct {
	text string
	err  error // nil for a panic
}

func (e *marshalError) Error() string { return e.text }
func (e *marshalError) Unwrap() error { return e.err }

// isLasting reports whether the app's marshaler would return the error again for the same message.
func isLasting(err error) bool {
	return unpublished.KindOf(&failure.Error{Err: publish.ErrRefused, Cause: err}).ForGood()
}

func rawPublishing(msg *message.Message) amqp091.Publishing {
	headers := make(amqp091.Table, len(msg.Metadata))
	for key, value := range msg.Metadata {
		headers[key] = value
	}
	return amqp091.Publishing{Body: msg.Payload, Headers: headers}
}
