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
)

var _ message.Publisher = (*Publisher)(nil)

// A Publisher publishes to one exchange, over one connection of its own. It reconnects by itself. All its methods may be
// called by any number of goroutines at the same time.
type Publisher struct {
	config Config
	link   *link

	toWriter     chan *request
	toQuarantine chan *request
	slots        chan struct{} // a token for each further message that may be in flight
	ids          atomic.Uint64
	redeclares   redeclares
	calls        gate
}

// New connects to the broker and returns an error when it cannot: a fault in the config, a broker that does not answer
// within 30 s (or the connection_timeout of the URI), a wrong password. A nil logger means none.
func New(config Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	if config.AMQP != nil {
		own := config.amqpConfig()
		config.AMQP, config.TLS = &own, nil // TLS is in it
	} else {
		config.TLS = config.TLS.Clone()
	}
	uri, err := parseURI(config.URI)
	if err != nil {
		return nil, err
	}
	l := newLink(config, logger.With(watermill.LogFields{"broker": place(uri), "exchange": config.Exchange}))
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

// firstID is 36^7: ids from here on have 8 digits, so that a message's size is known before its id.
const firstID = 36 * 36 * 36 * 36 * 36 * 36 * 36

// Publish publishes the messages with the topic as the routing key, and returns nil when the broker has routed and
// confirmed every one of them. Otherwise it returns a *PublishError, or several joined: each names its message, and is
// one of this package's errors. A message that is none of them has been confirmed.
//
// It returns within Config.ConfirmTimeout; a message's context can end the wait for that message earlier, and its error
// is then found by errors.Is. While there is no connection, or the broker has blocked it, it fails at once: the caller
// holds the message, and tries again. When Marshal fails or a message has to be refused, none of the call is sent.
//
// Several messages are sent together and then waited for; their order on the wire is theirs, unless one of them has to be
// sent again. In rare cases a message arrives twice; see the package's documentation.
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

// Close lets no new message in, waits for those in flight (no longer than their deadlines), and closes the connection. It
// may be called several times, and waits each time. Where Config.Redeclare hangs, its goroutine may outlive Close.
func (p *Publisher) Close() error {
	p.calls.close()
	p.link.close()
	return nil
}

// prepare makes a request of a message, or says why it cannot be sent.
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
	case state.connection.blocked.Load():
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

// fit leaves room for what the broker adds: with that, too large a frame, or too many headers, close the connection of every
// consumer that they meet.
func (p *Publisher) fit(r *request, l limits) error {
	room, most := 0, maxElements-1 // the mark is one of them
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
		return errTooLarge{fmt.Sprintf("properties and headers take %d bytes, at most %d, the connection's frame_max, less %d for the broker's own",
			size, l.frameMax, room)}
	}
	return nil
}

// inspect marks the message first: the mark is a part of its size.
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

// A gate counts the calls inside, and can be closed to new ones.
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
