package publisher

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

var _ message.Publisher = (*Publisher)(nil)

// A Publisher publishes messages to one exchange, over a connection of its own. It reconnects by itself. All its methods are
// safe for concurrent use.
type Publisher struct {
	config Config
	link   *link

	toWriter     chan *request
	toQuarantine chan *request
	slots        chan struct{} // one token per free slot: MaxInFlight less the messages in flight
	ids          atomic.Uint64
	redeclares   redeclares
	calls        gate
}

// New creates a Publisher and connects to the broker. It returns an error when the config has faults or when it cannot connect,
// for example because the password is wrong or the broker does not answer within 30 s (or the connection_timeout of the URI). A
// nil logger means no logs.
func New(config Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	own := config.dial().Own(config.connectionName())
	config.AMQP, config.TLS = own.AMQP, own.TLS
	uri, err := dial.ParseURI(config.URI)
	if err != nil {
		return nil, err
	}
	l := newLink(config, logger.With(watermill.LogFields{"broker": dial.Place(uri), "exchange": config.Exchange}))
	p := &Publisher{
		config:       config,
		link:         l,
		toWriter:     make(chan *request, config.MaxInFlight),
		toQuarantine: make(chan *request, config.MaxInFlight),
		slots:        make(chan struct{}, config.MaxInFlight),
		redeclares:   redeclares{link: l, function: config.Redeclare, underWay: make(map[string]*redeclaration)},
	}
	for range config.MaxInFlight {
		p.slots <- struct{}{}
	}
	p.ids.Store(firstID + rand.Uint64N(firstID))
	if err := l.start(); err != nil {
		l.close()
		return nil, err
	}
	w := &writer{link: l, exchange: config.Exchange, queue: p.toWriter}
	q := &quarantine{link: l, exchange: config.Exchange, queue: p.toQuarantine, confirmTimeout: config.ConfirmTimeout}
	l.workers.Go(w.run)
	l.workers.Go(q.run)
	return p, nil
}

// firstID is 36^7. Ids from there on have 8 digits, so the size of the mark is constant.
const firstID = 36 * 36 * 36 * 36 * 36 * 36 * 36

// Publish publishes the messages with the topic as the routing key, and returns nil when the broker has routed and confirmed all
// of them. Otherwise it returns a *PublishError, or several joined, one for each message that failed. Each wraps one of this
// package's Err variables. The other messages of the call have been confirmed, with the exception of the next paragraph.
//
// Publish inspects all messages before it sends the first one. When Marshal fails, the publisher refuses a message, there is no
// connection, the broker has blocked it, or the publisher is closed, Publish returns one error at once and has sent no message of
// the call. The caller keeps the messages and can try again later.
//
// Publish returns within Config.ConfirmTimeout. The end of a message's context ends the wait for that message earlier, and
// errors.Is then finds the context's error. Messages are written in their order, except those that are sent again. In rare cases
// a message is delivered twice; see the package's documentation.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	if !p.calls.enter() {
		return p.failure(&request{routingKey: topic, uuid: uuidOf(messages[0])}, ErrClosed, nil)
	}
	defer p.calls.leave()

	c := call{p: p, timer: timers.Get().(*time.Timer)}
	c.timer.Reset(p.config.ConfirmTimeout)
	defer func() { c.timer.Stop(); timers.Put(c.timer) }()

	var one [1]*request
	c.requests = one[:0]
	for _, msg := range messages {
		r, err := p.prepare(topic, msg)
		if err != nil {
			return err
		}
		c.requests = append(c.requests, r)
	}
	return c.run()
}

// Close closes the publisher. It refuses new messages, waits for those in flight until their deadlines, and then closes the
// connection. It may be called several times, and waits each time. It returns nil. It does not wait for Config.Redeclare.
func (p *Publisher) Close() error {
	p.calls.close()
	p.link.close()
	return nil
}

// prepare makes a request of a message. It returns an error when the message cannot be sent.
func (p *Publisher) prepare(topic string, msg *message.Message) (*request, error) {
	r := requests.Get().(*request)
	r.routingKey, r.uuid = topic, uuidOf(msg)
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
	if len(r.routingKey) > maxShortString {
		return ErrRefused, tooLong("the routing key", r.routingKey)
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
	if r.publishing, err = p.config.Marshal(msg); err != nil {
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

// fit makes the message small enough to leave room for the headers that the broker adds. A message with too large a frame or too
// many headers closes the connection of each consumer that receives it.
func (p *Publisher) fit(r *request, l limits) error {
	room, most := 0, maxElements-1 // the mark is one more
	if p.config.Headroom != nil {
		room = p.config.Headroom(r.routingKey)
	}
	if room > 0 {
		most -= brokerHeaders
	}
	if len(r.publishing.Headers) > most && p.config.Shrink != nil {
		p.config.Shrink(&r.publishing, math.MaxInt)
	}
	if n := len(r.publishing.Headers); n > most {
		return errTooLarge{fmt.Sprintf("the message has %d headers, at most %d", n, most)}
	}
	size, err := p.inspect(r, l)
	if err != nil {
		return err
	}
	excess := l.excess(size + room)
	if excess > 0 && p.config.Shrink != nil {
		p.config.Shrink(&r.publishing, excess)
		if size, err = p.inspect(r, l); err != nil {
			return err
		}
		excess = l.excess(size + room)
	}
	if excess > 0 && excess <= markSize {
		r.unmark()
		excess = 0
	}
	if excess > 0 {
		return errTooLarge{fmt.Sprintf("properties and headers take %d bytes, at most %d: the connection's frame_max is %d, "+
			"and %d bytes are reserved for the broker's headers", size, max(l.frameMax-room, 0), l.frameMax, room)}
	}
	return nil
}

// inspect marks the message, and inspects it with the mark.
func (p *Publisher) inspect(r *request, l limits) (size int, err error) {
	if r.publishing.Headers == nil {
		r.publishing.Headers = make(amqp091.Table, 1)
	}
	r.mark(p.ids.Add(1))
	return inspect(&r.publishing, l)
}

func (p *Publisher) failure(r *request, kind, cause error) error {
	return &PublishError{Exchange: p.config.Exchange, RoutingKey: r.routingKey, MessageUUID: r.uuid, Err: kind, Cause: cause}
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
	g.inside.Wait()
}
