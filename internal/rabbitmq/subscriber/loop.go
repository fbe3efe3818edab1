package subscriber

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A loop keeps a session of one queue open: of the work queue, or with an Order of the intake or of a partition. It
// declares the topic before each session, also while the handler is paused. Then it has none.
type loop struct {
	*subscription
	kind
	queue   string
	binds   bool                // the queue is bound when it is consumed
	fields  watermill.LogFields // of its log lines
	changes chan struct{}       // receives when it is to look at the limit
	current atomic.Pointer[session]
	rests   atomic.Bool  // there is no session, because of a pause only
	since   atomic.Int64 // since when there is a session, or none

	// Only run, and start before it, use the following.
	declared *wire.Connection // the last one on which the topic was declared
	lost     struct {         // the last session, if it has ended unplanned, or its queue could not be bound
		connection *wire.Connection
		at         time.Time
	}
	unconsumed time.Time // since when there was no consumer, because of a pause; zero: there was no pause
	steps      bool      // a session with another limit may follow at once
}

// A kind is what the loops of a work queue and of a partition do differently.
type kind interface {
	// begin opens a channel that consumes the queue. It returns nil while the handler is paused.
	begin(current *wire.Connection) (*session, error)

	// feed makes the receiver receive from a session.
	feed(n *session)

	// keep returns why a session ends. Nil: the handler is paused, or the subscription stops.
	keep(n *session) error

	// retire ends a session. It returns when another one may follow.
	retire(n *session, reason error)
}

func newLoop(s *subscription, queue string) *loop {
	l := &loop{subscription: s, queue: queue, changes: make(chan struct{}, 1)}
	l.since.Store(time.Now().UnixNano())
	return l
}

// Why a session ends.
var (
	errCancelled     = errors.New("the broker cancelled the consumer")
	errChannelClosed = errors.New("the channel was closed")
	errLimit         = errors.New("the limit has changed")
	errAside         = errors.New("messages are set aside")
	errNacked        = errors.New("a message was nacked")
	errDeposed       = errors.New("the broker has delivered a message again that is still here: it took this consumer " +
		"for lost")
	errWaits    = errors.New("a message waits for half of the consumer timeout")
	errBalance  = errors.New("another process has fewer partitions")
	errReturned = errors.New("no queue has got a message that was moved to its partition")
	errRefused  = errors.New("the broker has refused a message that was moved to its partition, by a nack")
)

// isPlanned reports whether a session can follow at once.
func isPlanned(reason error) bool {
	for _, planned := range []error{nil, errLimit, errAside, errWaits, errBalance, errNacked} {
		if errors.Is(reason, planned) {
			return true
		}
	}
	return false
}

// longestAgain bounds the pause after a session that could be opened. A message that no client can read ends each
// session at once, until the delivery limit of its queue, and the other messages of the connection wait as long.
const longestAgain = time.Second

// first opens the first session. It returns nil while the handler is paused.
func (l *loop) first() (first *session, err error) {
	err = wire.AtStart(l.ctx, l.connection.config.Pause(), l.logger, func(ctx context.Context) error {
		current, err := l.connection.link.Now()
		if err == nil {
			first, err = l.open(ctx, current)
		} else if l.failed.Load() != nil { // the broker has closed the connection because of another loop
			err = fmt.Errorf("%w: %w", err, amqp091.ErrClosed)
		}
		return err
	}, l.fail)
	return first, err
}

// run keeps a session open until the subscription stops, or none while the handler is paused. It begins with one that
// is adopted, or with none.
func (l *loop) run(n *session) {
	pause := l.connection.config.Pause()
	pause.Max = min(pause.Max, longestAgain)
	for n != nil || !l.stopped() { // a session that is stopped at once is retired, too
		if n == nil {
			if n = l.reopen(); n == nil {
				continue
			}
			if l.lost.connection != nil {
				l.counts.reconnects.Add(1)
			}
			l.adopt(n)
			l.logger.Info("Consuming again", l.fields.Add(watermill.LogFields{"prefetch": n.prefetch}))
		}
		began := time.Now()
		reason := l.keep(n)
		if !isPlanned(reason) { // the end of the session may wait for a function of the app
			l.setCurrent(nil)
			l.fail(reason)
		}
		l.retire(n, reason)
		if l.steps = reason == errLimit || reason == errAside; !l.steps {
			l.setCurrent(nil)
		}
		n = nil
		switch {
		case l.stopped():
		case reason == nil:
			l.rests.Store(true)
			l.unconsumed = time.Now()
			l.logger.Info("Paused: the consumer is cancelled, and messages stay in the queue",
				l.fields.Add(watermill.LogFields{"in_flight": l.inFlight.Load()}))
		case isPlanned(reason):
			l.logger.Info("The consumer gives way to another one",
				l.fields.Add(watermill.LogFields{"reason": reason.Error()}))
		default:
			l.lost.connection, l.lost.at = l.declared, time.Now()
			l.logger.Error("The consumer has ended, consuming again", reason, l.fields)
			if time.Since(began) > pause.Max {
				pause.Reset()
			}
			if errors.Is(reason, errCancelled) {
				pause.AtLeast(wire.AfterDeletion)
			}
			l.sleepFor(pause.Next())
		}
	}
}

// adopt makes a session the current one, and only then receives from it: Health consumes before a message is handled.
func (l *loop) adopt(n *session) {
	l.unconsumed, l.lost.connection = time.Time{}, nil
	l.setCurrent(n)
	l.feed(n)
}

func (l *loop) setCurrent(n *session) {
	l.rests.Store(false)
	if old := l.current.Swap(n); (old == nil) != (n == nil) {
		l.since.Store(time.Now().UnixNano())
	}
}

// consumes reports whether there is a consumer. While a limit changes, and when a pause is over, there is none for a
// moment.
func (l *loop) consumes() bool {
	return l.current.Load() != nil || l.rests.Load() && l.places.Limit() > 0
}

func (l *loop) sleepFor(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.stopping:
	}
}

// look makes a loop look at the limit, and at the messages that are set aside.
func (l *loop) look() {
	select {
	case l.changes <- struct{}{}:
	default:
	}
}

// reopen opens a session. It returns nil after a try that has failed, and at the end of a pause.
func (l *loop) reopen() *session {
	if l.sleepFor(l.failures.wait()); l.stopped() {
		return nil
	}
	if _, err := l.connection.link.Now(); err != nil {
		l.setCurrent(nil)
	}
	current := l.connection.link.Await(l.stopping)
	if current == nil {
		return nil
	}
	opened, err := l.open(l.ctx, current)
	switch {
	case l.stopped():
	case err != nil:
		l.setCurrent(nil)
		l.fail(err)
		l.logger.Error("Cannot consume again", err,
			l.fields.Add(watermill.LogFields{"next_attempt_within": l.failures.add().String()}))
	case opened == nil:
		l.setCurrent(nil)
		l.rests.Store(true)
		l.awaitResume(current)
	}
	return opened
}

// awaitResume waits until the pause is over, or the connection is lost: the next one needs the topology, too.
func (l *loop) awaitResume(current *wire.Connection) {
	if l.unconsumed.IsZero() {
		l.unconsumed = time.Now()
	}
	for l.places.Limit() == 0 {
		select {
		case <-l.changes:
		case <-current.Closed:
			return
		case <-l.stopping:
			return
		}
	}
}

// failures makes the loops of a subscription wait together after one could not open a session: the broker may have
// ended the connection of all for it, as with an internal error.
type failures struct {
	mu    sync.Mutex
	pause wire.Backoff
	over  time.Time
}

func (f *failures) wait() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Until(f.over)
}

// add returns the bound of the pause.
func (f *failures) add() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := time.Since(f.over)
	if since < 0 { // others have failed, too
		return f.pause.Bound()
	}
	if since > f.pause.Max {
		f.pause.Reset()
	}
	f.over = time.Now().Add(f.pause.Next())
	return f.pause.Bound()
}

// open declares the topic and opens a session, or none while the handler is paused. It waits neither for the broker nor
// for a function of the app when ctx ends.
func (l *loop) open(ctx context.Context, current *wire.Connection) (*session, error) {
	type result struct {
		session *session
		unbound bool
		err     error
	}
	lostAt, unconsumed, steps := time.Time{}, l.unconsumed, l.steps && l.declared == current
	if l.lost.connection == current {
		lostAt = l.lost.at
	}
	l.declared, l.steps = current, false
	opened := make(chan result, 1)
	go func() {
		n, again, err := l.consume(current, lostAt)
		unbound := false
		if n != nil && l.binds && (again || !steps) {
			if err = l.bind(current, lostAt, unconsumed); err != nil {
				n.abandon()
				n, unbound = nil, true
			}
		}
		opened <- result{n, unbound, err}
	}()
	select {
	case r := <-opened:
		if r.unbound { // each consumer counts deliveries: what is bound with it is declared before the next one
			l.lost.connection, l.lost.at = current, time.Now()
		}
		return r.session, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-opened; r.session != nil {
			r.session.abandon()
		}
	}()
	return nil, context.Cause(ctx)
}

// consume declares the topic and begins a session. What Handler.Declare remembers may be gone: when the queue does not
// exist, it declares again, and reports that.
func (l *loop) consume(current *wire.Connection, lostAt time.Time) (n *session, again bool, err error) {
	for {
		if err := l.subscriber.declare(current, l.topic, lostAt); err != nil {
			return nil, again, err
		}
		n, err := l.begin(current)
		if err == nil {
			return n, again, nil
		}
		var refused *amqp091.Error
		if again || !errors.As(err, &refused) || refused.Code != amqp091.NotFound {
			return nil, again, fmt.Errorf("topic %q: consume queue %q: %w", l.topic, l.queue, err)
		}
		again, lostAt = true, time.Now()
	}
}

// bind binds the queue of a consumer that has begun. Another client may have replaced the queue before, as one that
// still deletes it, and then it has lost its bindings; a queue that is replaced from now on ends the consumer. After a
// loss it is declared again.
func (l *loop) bind(current *wire.Connection, lostAt, unconsumed time.Time) error {
	if !lostAt.IsZero() {
		return l.subscriber.declare(current, l.topic, time.Now())
	}
	return l.subscriber.bind(current, l.topic, unconsumed)
}
