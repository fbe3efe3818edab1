package publisher

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

var _ message.Publisher = (*Publisher)(nil)

// A Publisher publishes messages over a Connection, which it may share with others. All its methods are safe for concurrent use.
type Publisher struct {
	config     Config
	connection *Connection
	owned      bool // Close closes the connection too
	link       *link

	exchanges  *declarations // calls of Config.DeclareExchange
	redeclares *declarations // calls of Config.Redeclare
	calls      gate
}

// New creates a Publisher with a connection of its own, as Open and NewPublisher do. Closing the Publisher closes the connection.
// It returns the faults of both configs.
func New(connection ConnectionConfig, config Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := errors.Join(connection.Validate(), config.Validate()); err != nil {
		return nil, err
	}
	opened, err := Open(connection, logger)
	if err != nil {
		return nil, err
	}
	p, err := NewPublisher(opened, config)
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	p.owned = true
	return p, nil
}

// NewPublisher returns a Publisher on a connection, which stays open when the Publisher is closed. It does not wait for the broker.
// It returns an error when the config has faults, and one that wraps ErrClosed when the connection is closed.
func NewPublisher(connection *Connection, config Config) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if connection == nil {
		return nil, errors.New("publisher: the connection is nil; open one with publisher.Open")
	}
	config.setDefaults()
	p := &Publisher{
		config:     config,
		connection: connection,
		link:       connection.link,
		exchanges: newDeclarations(connection.link, "Config.DeclareExchange", func(channel *amqp091.Channel, d destination) error {
			return config.DeclareExchange(channel, d.exchange)
		}).remember(),
		redeclares: newDeclarations(connection.link, "Config.Redeclare", func(channel *amqp091.Channel, d destination) error {
			return config.Redeclare(channel, d.exchange, d.routingKey)
		}),
	}
	if !connection.add(p) {
		return nil, fmt.Errorf("%w, because its connection is closed", ErrClosed)
	}
	return p, nil
}

// Publish publishes the messages with the topic as the routing key, or as Config.Route routes it, and returns nil when the broker
// has routed and confirmed all of them. Otherwise it returns a *PublishError, or several joined, one for each message that failed.
// Each wraps one of this package's Err variables. The other messages of the call have been confirmed, with the exception of the
// next paragraph.
//
// Publish inspects all messages before it sends the first one. When Route, Marshal or DeclareExchange fails, the publisher refuses
// a message, there is no connection, the broker has blocked it, or the publisher is closed, Publish returns one error and has sent
// no message of the call. It does so at once, except that it waits for DeclareExchange. The caller keeps the messages and can try
// again later.
//
// Publish returns within ConnectionConfig.ConfirmTimeout. The end of a message's context ends the wait for that message earlier,
// and errors.Is then finds the context's error. Messages are written in their order, except those that are sent again. In rare
// cases a message is delivered twice; see the package's documentation.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	exchange, routingKey, err := p.route(topic)
	if err != nil {
		return p.unsent(exchange, routingKey, messages[0], ErrRefused, err)
	}
	if !p.calls.enter() {
		return p.unsent(exchange, routingKey, messages[0], ErrClosed, nil)
	}
	defer p.calls.leave()

	c := call{p: p, timer: timers.Get().(*time.Timer)}
	c.timer.Reset(p.link.config.ConfirmTimeout)
	defer func() { c.timer.Stop(); timers.Put(c.timer) }()

	var one [1]*request
	c.requests = one[:0]
	for _, msg := range messages {
		r, err := p.prepare(exchange, routingKey, msg)
		if err != nil {
			return err
		}
		c.requests = append(c.requests, r)
	}
	if p.config.DeclareExchange != nil && exchange != "" {
		if err := c.declareExchange(c.requests[0]); err != nil {
			return err
		}
	}
	return c.run()
}

// Close closes the publisher: it refuses new messages, and waits for those in flight until their deadlines. It closes the
// connection only if New has opened it. It may be called several times, and waits each time. It returns nil. It does not wait for
// Config.DeclareExchange and Config.Redeclare.
func (p *Publisher) Close() error {
	if p.owned {
		return p.connection.Close()
	}
	p.calls.close()
	p.calls.wait()
	p.connection.remove(p)
	return nil
}

// route returns where a topic's messages are published to. With an error, the topic stands for the routing key.
func (p *Publisher) route(topic string) (exchange, routingKey string, err error) {
	exchange, routingKey = p.config.Exchange, topic
	if p.config.Route != nil {
		if exchange, routingKey, err = p.config.Route(topic); err != nil {
			return exchange, topic, fmt.Errorf("Config.Route: %w", err)
		}
	}
	switch {
	case len(exchange) > maxShortString:
		err = tooLong("the exchange", exchange)
	case len(routingKey) > maxShortString:
		err = tooLong("the routing key", routingKey)
	}
	return exchange, routingKey, err
}

// prepare makes a request of a message. It returns an error when the message cannot be sent.
func (p *Publisher) prepare(exchange, routingKey string, msg *message.Message) (*request, error) {
	r := requests.Get().(*request)
	r.exchange, r.routingKey, r.uuid = exchange, routingKey, uuidOf(msg)
	kind, cause := p.fill(r, msg)
	if kind != nil {
		err := p.failure(r, kind, cause)
		r.recycle()
		return nil, err
	}
	return r, nil
}

// fill sets the fields of the request, or returns the kind and cause of an error.
func (p *Publisher) fill(r *request, msg *message.Message) (kind, cause error) {
	if msg == nil {
		return ErrRefused, errors.New("the message is nil")
	}
	state := p.link.state.Load()
	switch {
	case state.connection == nil:
		return ErrNotConnected, state.cause
	case state.connection.Blocked.Load():
		return ErrBlocked, nil
	}
	r.ctx = msg.Context()
	var err error
	if r.publishing, err = p.marshal(msg); err != nil {
		return ErrRefused, err
	}
	if r.publishing.DeliveryMode == 0 {
		r.publishing.DeliveryMode = amqp091.Persistent
	}
	if err := p.fit(r, state.connection.limits); err != nil {
		return ErrRefused, err
	}
	return nil, nil
}

// marshal returns a panic of Config.Marshal as an error.
func (p *Publisher) marshal(msg *message.Message) (publishing amqp091.Publishing, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("Config.Marshal panicked: %v", fault)
		}
	}()
	return p.config.Marshal(msg)
}

// fit makes the message small enough to leave room for the headers that the broker adds. A message with too large a frame or too
// many headers closes the connection of each consumer that receives it.
func (p *Publisher) fit(r *request, l limits) error {
	room, spare, most := 0, 0, maxElements
	if p.config.Headroom != nil {
		room = p.config.Headroom(r.routingKey)
	}
	if p.config.Spare != nil {
		spare = p.config.Spare(r.routingKey)
	}
	switch {
	case room > 0:
		most -= brokerHeaders
	case spare > 0:
		most -= countHeaders
	}
	if len(r.publishing.Headers) >= most && p.config.Shrink != nil {
		p.config.Shrink(&r.publishing, math.MaxInt)
	}
	n := len(r.publishing.Headers)
	if n > most {
		return errTooLarge{fmt.Sprintf("the message has %d headers, at most %d", n, most)}
	}
	marks := n < most
	size, err := p.inspect(r, l, marks)
	if err != nil {
		return err
	}
	excess := l.excess(size + room + spare)
	if excess > 0 && p.config.Shrink != nil {
		p.config.Shrink(&r.publishing, excess)
		if size, err = p.inspect(r, l, marks); err != nil {
			return err
		}
		excess = l.excess(size + room + spare)
	}
	if excess == 0 {
		return nil
	}
	if marks {
		r.unmark()
		size -= markSize
	}
	if l.excess(size+room) > 0 {
		return errTooLarge{fmt.Sprintf("properties and headers take %d bytes, at most %d: the connection's frame_max is %d, "+
			"and %d bytes are reserved for the broker's headers", size, max(l.frameMax-room, 0), l.frameMax, room)}
	}
	return nil
}

// inspect inspects the message, with its mark if there is room for one more header.
func (p *Publisher) inspect(r *request, l limits, marks bool) (size int, err error) {
	if r.publishing.Headers == nil {
		r.publishing.Headers = make(amqp091.Table, 1)
	}
	if marks {
		r.mark(p.link.ids.Add(1))
	} else {
		r.unmark()
	}
	return inspect(&r.publishing, l)
}

func (p *Publisher) failure(r *request, kind, cause error) error {
	return p.failureOf(r, &PublishError{Err: kind, Cause: cause, unsent: r.state.Load() == unsent})
}

// failureOf completes an error with where the message goes.
func (p *Publisher) failureOf(r *request, err *PublishError) error {
	err.Exchange, err.RoutingKey, err.MessageUUID = r.exchange, r.routingKey, r.uuid
	return err
}

// unsent is the error of a message that has no request.
func (p *Publisher) unsent(exchange, routingKey string, msg *message.Message, kind, cause error) error {
	return &PublishError{Exchange: exchange, RoutingKey: routingKey, MessageUUID: uuidOf(msg), Err: kind, Cause: cause}
}

func uuidOf(msg *message.Message) string {
	if msg == nil {
		return ""
	}
	return msg.UUID
}

// A gate counts the calls under way. After it is closed, no call can enter.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside.Add(1)
	}
	return !g.closed
}

func (g *gate) leave() { g.inside.Done() }

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

// wait waits, after close, until all calls have left.
func (g *gate) wait() { g.inside.Wait() }
