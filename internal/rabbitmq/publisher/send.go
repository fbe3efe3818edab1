package publisher

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Message is what Send publishes, and where to.
type Message struct {
	Context    context.Context // its end ends the wait for the message
	Exchange   string          // at most 255 bytes; empty: the default exchange
	RoutingKey string          // at most 255 bytes
	UUID       string          // for errors

	// Publishing may be changed by Send: it adds IDHeader to the headers. A DeliveryMode of 0 becomes persistent.
	Publishing amqp091.Publishing

	Room Room

	// Suspect is set when the broker has closed a channel because of the message. Such a message is published alone. It
	// outlives a call, for a message that is sent again. Nil: it is not remembered.
	Suspect *atomic.Bool
}

// Room is what the broker may add to the headers of a message before a consumer reads it, as it does when it
// dead-letters. With a larger frame or more headers than it can read, a consumer loses its connection.
type Room struct {
	Headers int // a message that leaves fewer of them is refused
	Bytes   int // the size of the frame with the headers; a message that leaves fewer is refused

	// Spare is how many bytes more to leave if possible, such as for the broker's counts of deliveries in a queue whose
	// messages are read more than once. A message that is too large only because of them is not refused.
	Spare int
}

// Send publishes messages, each as mandatory, and returns nil when the broker has routed and confirmed all of them.
// Otherwise it returns the errors of the messages, each a *failure.Error or nil, in their places.
//
// Send inspects all messages before it sends the first one. When it refuses one, when there is no connection, when the
// broker has blocked it, or after Close, it returns the *failure.Error of that message as err, at once, and has sent
// none. The caller keeps the messages and can try again later.
//
// Send returns within Config.ConfirmTimeout. The end of a message's context ends the wait for that message earlier, and
// errors.Is then finds the context's error. Messages are written in their order, except those that are sent again. In
// rare cases a message is delivered twice; see the package's documentation.
func (c *Connection) Send(messages ...Message) (failures []error, err error) {
	if len(messages) == 0 {
		return nil, nil
	}
	if !c.calls.Enter() {
		return nil, messages[0].Failure(retry.ErrClosed, nil)
	}
	defer c.calls.Leave()

	all := call{c: c, timer: c.timers.Get().(*time.Timer)}
	all.timer.Reset(c.config.ConfirmTimeout)
	defer func() { all.timer.Stop(); c.timers.Put(all.timer) }()

	var one [1]*request
	all.requests = one[:0]
	for i := range messages {
		r, err := c.prepare(&messages[i])
		if err != nil {
			return nil, err
		}
		all.requests = append(all.requests, r)
	}
	return all.run(), nil
}

// SendOne is Send for one message.
func (c *Connection) SendOne(m Message) error {
	failures, err := c.Send(m)
	if failures != nil {
		return failures[0]
	}
	return err
}

// Excess returns by how many bytes a message is too large to be sent with its Room and Spare and with IDHeader, and
// math.MaxInt if it has too many headers. The caller can make it smaller before Send, which may refuse it otherwise.
// Without a connection the bound is not known, and that is the error of the message.
func (c *Connection) Excess(m *Message) (int, error) {
	state := c.link.State()
	if state.Connection == nil {
		return 0, c.unconnected(m, state)
	}
	return m.excess(limitsOf(state.Connection)), nil
}

func (m *Message) excess(l limits) int {
	m.complete()
	if len(m.Publishing.Headers) >= maxElements-m.Room.Headers {
		return math.MaxInt
	}
	size, err := inspect(&m.Publishing, l)
	if err != nil {
		return 0 // Send reports it
	}
	if len(m.Publishing.Headers) == 0 {
		size += longLen
	}
	return l.excess(size + markSize + m.Room.Bytes + m.Room.Spare)
}

// unconnected is the error of a message without a connection.
func (c *Connection) unconnected(m *Message, state *wire.State) *failure.Error {
	if c.ctx.Err() != nil {
		return m.Failure(retry.ErrClosed, nil)
	}
	return m.Failure(publish.ErrNotConnected, state.Cause)
}

// complete makes of the publishing what is sent, without the mark.
func (m *Message) complete() {
	if m.Publishing.DeliveryMode == 0 {
		m.Publishing.DeliveryMode = amqp091.Persistent
	}
	if m.Publishing.Headers == nil {
		m.Publishing.Headers = make(amqp091.Table, 1)
	}
	delete(m.Publishing.Headers, IDHeader)
}

// Failure returns the error of a message that was not sent.
func (m *Message) Failure(kind, cause error) *failure.Error {
	return &failure.Error{
		Exchange: m.Exchange, RoutingKey: m.RoutingKey, MessageUUID: m.UUID, Err: kind, Cause: cause, Unsent: true,
	}
}

// prepare makes a request of a message. It returns an error when the message cannot be sent.
func (c *Connection) prepare(m *Message) (*request, error) {
	state := c.link.State()
	switch {
	case len(m.Exchange) > maxShortString:
		return nil, m.Failure(publish.ErrRefused, tooLong("the exchange", m.Exchange))
	case len(m.RoutingKey) > maxShortString:
		return nil, m.Failure(publish.ErrRefused, tooLong("the routing key", m.RoutingKey))
	case state.Connection == nil:
		return nil, m.Failure(publish.ErrNotConnected, state.Cause)
	case state.Connection.Blocked.Load():
		return nil, m.Failure(publish.ErrBlocked, nil)
	}
	m.complete()
	r := c.requests.Get().(*request)
	r.ctx, r.exchange, r.routingKey, r.uuid, r.suspect = m.Context, m.Exchange, m.RoutingKey, m.UUID, m.Suspect
	r.publishing = m.Publishing
	if err := c.fit(r, m.Room, limitsOf(state.Connection)); err != nil {
		c.recycle(r)
		return nil, m.Failure(publish.ErrRefused, err)
	}
	return r, nil
}

// fit gives the request its mark if there is room for it. It returns an error for a message with too large a frame or
// too many headers, and for one that would close the channel.
func (c *Connection) fit(r *request, room Room, l limits) error {
	n, most := len(r.publishing.Headers), maxElements-room.Headers
	if n > most {
		return &unpublished.TooLargeError{Text: fmt.Sprintf("the message has %d headers, at most %d", n, most)}
	}
	if n < most {
		r.mark(c.ids.Add(1))
	}
	size, err := inspect(&r.publishing, l)
	if err != nil {
		return err
	}
	if r.id != "" && l.excess(size+room.Bytes+room.Spare) > 0 {
		r.unmark()
		size -= markSize
	}
	if l.excess(size+room.Bytes) > 0 {
		return &unpublished.TooLargeError{Text: fmt.Sprintf("properties and headers take %d bytes, at most %d: the "+
			"connection's "+
			"frame_max is %d, and %d bytes are reserved for the broker's headers",
			size, max(l.frameMax-room.Bytes, 0), l.frameMax, room.Bytes)}
	}
	return nil
}
