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

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Loop keeps a session of one queue open. It declares the topic before each session, also while the handler is
// paused. Then it has none.
type Loop struct {
	*Subscription
	Queue   string
	Logger  watermill.LoggerAdapter
	Changes chan struct{} // receives when the session is to look at the limit
	Since   atomic.Int64  // since when there is a session, or none, in ns

	kind      Kind
	binds     bool // the queue is bound when it is consumed
	consuming atomic.Bool
	rests     atomic.Bool // there is no session, because of a pause only

	// Only run, and start before it, use the following.
	declared *wire.Connection // the last one on which the topic was declared
	lost     struct {         // the last session, if it has ended unplanned, or its queue could not be bound
		connection *wire.Connection
		at         time.Time
	}
	unconsumed time.Time // since when there was no consumer, because of a pause; zero: there was no pause
	steps      bool      // a session with another limit may follow at once
}

// A Kind is what loops do differently.
type Kind interface {
	// Begin opens a channel that consumes the queue. It returns nil while the handler is paused.
	Begin(current *wire.Connection) (Session, error)

	// Rest is called when the subscription stops, and no session follows.
	Rest()

	// AddTo adds to the health of the subscription.
	AddTo(h *retry.SubscriptionHealth)
}

// A Session is one consumer of a loop, from its beginning to its end.
type Session interface {
	// Feed makes the dispatcher receive from the session.
	Feed()

	// Keep returns why the session ends. Nil: the handler is paused, or the subscription stops.
	Keep() error

	// Retire ends the session. It returns when another one may follow.
	Retire(reason error)

	// Abandon ends a session from which nothing is received.
	Abandon()

	// Fetches returns its prefetch.
	Fetches() int
}

// NewLoop adds a loop to a subscription that has not started.
func (s *Subscription) NewLoop(queue string, kind Kind, binds bool, fields watermill.LogFields) *Loop {
	l := &Loop{Subscription: s, Queue: queue, Logger: s.Logger.With(fields), Changes: make(chan struct{}, 1), kind: kind,
		binds: binds}
	l.Since.Store(time.Now().UnixNano())
	s.loops = append(s.loops, l)
	return l
}

// Why a session ends, and another one follows at once.
const (
	errLimit Planned = "the limit has changed"
	errAside Planned = "messages are set aside"
)

// Planned is the reason for the end of a session that another one can follow at once.
type Planned string

func (p Planned) Error() string { return string(p) }

// IsPlanned reports whether a session can follow at once.
func IsPlanned(reason error) bool {
	_, is := reason.(Planned)
	return is || reason == nil
}

// longestAgain bounds the pause after a session that could be opened. A message that no client can read ends each
// session at once, until the delivery limit of its queue, and the other messages of the connection wait as long.
const longestAgain = time.Second

// first opens the first session. It returns nil while the handler is paused.
func (l *Loop) first() (first Session, err error) {
	err = wire.AtStart(l.Stopping, l.connection.config.Pause(), l.Logger, func(ctx context.Context) error {
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
func (l *Loop) run(n Session) {
	pause := l.connection.config.Pause()
	pause.Max = min(pause.Max, longestAgain)
	inform := l.Logger.Info        // the steps of a breaker, several in a second, are no news
	for n != nil || !l.stopped() { // a session that is stopped at once is retired, too
		if n == nil {
			if n = l.reopen(); n == nil {
				inform = l.Logger.Info
				continue
			}
			if l.lost.connection != nil {
				l.reconnects.Add(1)
			}
			l.adopt(n)
			inform("Consuming again", watermill.LogFields{"prefetch": n.Fetches()})
		}
		began := time.Now()
		reason := n.Keep()
		if !IsPlanned(reason) { // the end of the session may wait for a function of the app
			l.setConsuming(false)
			l.fail(reason)
		}
		n.Retire(reason)
		if l.steps = reason == errLimit || reason == errAside; l.steps {
			inform = l.Logger.Debug
		} else {
			l.setConsuming(false)
			inform = l.Logger.Info
		}
		n = nil
		switch {
		case l.stopped():
		case reason == nil:
			l.rests.Store(true)
			l.unconsumed = time.Now()
			l.Logger.Info("Paused: the consumer is cancelled, and messages stay in the queue",
				watermill.LogFields{"in_flight": l.InFlight.Load()})
		case IsPlanned(reason):
			inform("The consumer gives way to another one", watermill.LogFields{"reason": reason.Error()})
		default:
			l.lost.connection, l.lost.at = l.declared, time.Now()
			l.Logger.Error("The consumer has ended, consuming again", reason, nil)
			if time.Since(began) > pause.Max {
				pause.Reset()
			}
			if errors.Is(reason, channel.ErrCancelled) {
				pause.AtLeast(wire.AfterDeletion)
			}
			l.sleepFor(pause.Next())
		}
	}
}

// adopt makes a session the current one, and only then receives from it: Health consumes before a message is handled.
func (l *Loop) adopt(n Session) {
	l.unconsumed, l.lost.connection = time.Time{}, nil
	l.setConsuming(true)
	n.Feed()
}

func (l *Loop) setConsuming(is bool) {
	l.rests.Store(false)
	if l.consuming.Swap(is) != is {
		l.Since.Store(time.Now().UnixNano())
	}
}

func (l *Loop) sleepFor(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.Stopping.Done():
	}
}

// look makes a loop look at the limit, and at the messages that are set aside.
func (l *Loop) look() {
	select {
	case l.Changes <- struct{}{}:
	default:
	}
}

// reopen opens a session. It returns nil after a try that has failed, and at the end of a pause.
func (l *Loop) reopen() Session {
	if l.sleepFor(l.failures.wait()); l.stopped() {
		return nil
	}
	if _, err := l.connection.link.Now(); err != nil {
		l.setConsuming(false)
	}
	current := l.connection.link.Await(l.Stopping.Done())
	if current == nil {
		return nil
	}
	opened, err := l.open(l.Stopping, current)
	switch {
	case l.stopped():
	case err != nil:
		l.setConsuming(false)
		l.fail(err)
		l.Logger.Error("Cannot consume again", err,
			watermill.LogFields{"next_attempt_within": l.failures.add().String()})
	case opened == nil:
		l.setConsuming(false)
		l.rests.Store(true)
		l.awaitResume(current)
	}
	return opened
}

// awaitResume waits until the pause is over, or the connection is lost: the next one needs the topology, too.
func (l *Loop) awaitResume(current *wire.Connection) {
	if l.unconsumed.IsZero() {
		l.unconsumed = time.Now()
	}
	for l.Places.Limit() == 0 {
		select {
		case <-l.Changes:
		case <-current.Closed:
			return
		case <-l.Stopping.Done():
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
	switch since := time.Since(f.over); {
	case since < 0: // others have failed, too
		return f.pause.Bound()
	case since > f.pause.Max:
		f.pause.Reset()
	}
	f.over = time.Now().Add(f.pause.Next())
	return f.pause.Bound()
}

// open declares the topic and opens a session, or none while the handler is paused. It waits neither for the broker nor
// for a function of the app when ctx ends.
func (l *Loop) open(ctx context.Context, current *wire.Connection) (Session, error) {
	type result struct {
		session Session
		unbound bool
		err     error
	}
	binds, lostAt, unconsumed := l.binds && (!l.steps || l.declared != current), time.Time{}, l.unconsumed
	if l.lost.connection == current {
		lostAt = l.lost.at
	}
	l.declared, l.steps = current, false
	opened := make(chan result)
	go func() {
		n, unbound, err := l.consume(current, binds, lostAt, unconsumed)
		select {
		case opened <- result{n, unbound, err}:
		case <-ctx.Done():
			if n != nil {
				n.Abandon()
			}
		}
	}()
	select {
	case r := <-opened:
		if r.unbound { // each consumer counts deliveries: what is bound with it is declared before the next one
			l.lost.connection, l.lost.at = current, time.Now()
		}
		return r.session, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// consume declares the topic, begins a session, and binds its queue. What Handler.Declare remembers may be gone: when
// the queue does not exist, it declares again.
func (l *Loop) consume(
	current *wire.Connection, binds bool, lostAt, unconsumed time.Time,
) (n Session, unbound bool, err error) {
	if err = l.subscriber.declare(current, l.Topic, lostAt); err != nil {
		return nil, false, err
	}
	n, err = l.kind.Begin(current)
	if refused := (*amqp091.Error)(nil); errors.As(err, &refused) && refused.Code == amqp091.NotFound {
		binds = l.binds
		if err = l.subscriber.declare(current, l.Topic, time.Now()); err != nil {
			return nil, false, err
		}
		n, err = l.kind.Begin(current)
	}
	if err != nil {
		return nil, false, fmt.Errorf("topic %q: consume queue %q: %w", l.Topic, l.Queue, err)
	}
	if n != nil && binds {
		if err = l.bind(current, lostAt, unconsumed); err != nil {
			n.Abandon()
			return nil, true, err
		}
	}
	return n, false, nil
}

// bind binds the queue of a consumer that has begun. Another client may have replaced the queue before, as one that
// still deletes it, and then it has lost its bindings; a queue that is replaced from now on ends the consumer. After a
// loss, and where that fails, it is declared again.
func (l *Loop) bind(current *wire.Connection, lostAt, unconsumed time.Time) error {
	s := l.subscriber
	if lostAt.IsZero() && s.with(current, l.Topic, unconsumed, "Bind", s.handler.Bind) == nil {
		return nil
	}
	return s.declare(current, l.Topic, time.Now())
}

// Open begins a consumer of the queue on a channel. Its tag has a number where there are several. moves: the broker may
// move the consumer.
func (l *Loop) Open(
	current *wire.Connection, open channel.AMQP, prefetch int, several, moves bool,
) (*channel.Session, error) {
	c := channel.Consumer{Options: l.Config.Consumer, Queue: l.Queue, Prefetch: prefetch, Moves: moves}
	if several || c.Tag == "" {
		c.Tag = c.Numbered()
	}
	return channel.New(l.Stopping, current, open, c)
}
