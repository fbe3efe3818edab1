package subscriber

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// giveUpAfter is how long messages in flight may go on after their contexts have ended.
const giveUpAfter = time.Second

// A subscription is one Subscribe call. It has a session at a time, and messages in flight that outlive its sessions.
type subscription struct {
	subscriber *Subscriber
	config     *Config
	connection *Connection
	logger     watermill.LoggerAdapter
	topic      string
	queue      string
	values     context.Context // Subscribe's context, without its end
	nacks      *nackCounts

	partitions []*partition // in order: the intake, then the others; nil: there is no Order
	members    string       // the queue on which each process has a consumer
	failures   failures     // of partitions that could not be opened
	balancing  sync.Mutex   // guards balanced, and makes partitions look one after the other
	balanced   time.Time    // when a partition was handed over

	session  atomic.Pointer[sessionState]
	receiver *receiver
	places   *gate.Places   // of calls, and of messages in flight
	changes  chan struct{}  // receives when run is to look at the limit
	workers  sync.WaitGroup // messages in flight
	retiring sync.WaitGroup // sessions that are not the current one any more
	inFlight atomic.Int64
	counts   struct{ deliveries, redeliveries, reconnects atomic.Uint64 } // of Health
	failed   atomic.Pointer[failure]                                      // the last one; nil: none
	// when the last session ended; only run and start use it
	lost struct {
		connection *wire.Connection
		at         time.Time
	}

	limiting sync.Mutex
	limit    int // what was asked for; less than 0: none

	ctx      context.Context // Subscribe's, which stop ends, too
	cancel   context.CancelCauseFunc
	stopping <-chan struct{} // of ctx; closed: nothing more is handed out
	expired  chan struct{}   // closed: the contexts of messages in flight end
	givenUp  chan struct{}   // closed: messages in flight are not waited for any more
	done     chan struct{}   // closed: all is over
}

// A sessionState is replaced, never changed.
type sessionState struct {
	session  *session  // nil: there is none
	consumer *consumer // nil: there is none
	since    time.Time
}

func newSubscription(subscriber *Subscriber, ctx context.Context, topic, queue string) *subscription {
	s := &subscription{
		subscriber: subscriber,
		config:     &subscriber.config,
		connection: subscriber.connection,
		logger:     subscriber.logger.With(watermill.LogFields{"topic": topic, "queue": queue}),
		topic:      topic,
		queue:      queue,
		values:     context.WithoutCancel(ctx),
		nacks:      newNackCounts(),
		expired:    make(chan struct{}),
		givenUp:    make(chan struct{}),
		done:       make(chan struct{}),
		changes:    make(chan struct{}, 1),
		places:     gate.NewPlaces(subscriber.config.Concurrency, subscriber.config.inFlight()),
		limit:      gate.None,
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.stopping = s.ctx.Done()
	if s.config.Order != nil {
		s.newPartitions()
	}
	s.receiver = newReceiver(s)
	s.setState(nil)
	return s
}

// start opens the first session. After an error, the subscription is over.
func (s *subscription) start() error {
	if s.partitions != nil {
		return s.startOrdered()
	}
	detach := s.config.Gate.Attach(s)
	go s.receiver.run()
	first, err := s.begin()
	if err != nil {
		s.receiver.quit()
		s.finish(detach)
		return err
	}
	go s.run(first, detach)
	return nil
}

// begin opens the first session, and waits until its queue is bound.
func (s *subscription) begin() (first *session, err error) {
	err = wire.AtStart(s.ctx, s.connection.config.Pause(), s.logger, func(ctx context.Context) error {
		current, err := s.connection.link.Now()
		if err != nil {
			return err
		}
		if first, err = s.open(ctx, current); err != nil {
			return err
		}
		s.adopt(first)
		if s.bind(first); first.bindResult == nil {
			return nil
		}
		select {
		case err = <-first.bindResult:
			if first.lost() {
				err = nil // run has the reason
			}
		case <-first.closed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			s.leave(first)
		}
		return err
	}, s.fail)
	return first, err
}

// adopt makes a session the current one, and only then receives from it: Health consumes before a message is handled.
func (s *subscription) adopt(n *session) {
	s.setState(n)
	s.receive(n)
}

// leave ends the current session. Before the queue is consumed again, what can be declared is declared.
func (s *subscription) leave(n *session) {
	s.lost.connection, s.lost.at = n.connection, time.Now()
	s.setState(nil)
	s.retiring.Go(func() {
		n.cancel(answerTimeout) // it may only be its queue that could not be bound
		s.retire(n)
	})
}

func (s *subscription) stop() { s.cancel(ErrClosed) }

func (s *subscription) stopped() bool { return s.ctx.Err() != nil }

// finish ends what start has begun, without the receiver.
func (s *subscription) finish(detach func()) {
	s.stop()
	detach()
	s.connection.remove(s)
	close(s.done)
}

// setState makes a session, with its consumer, the current one. Nil: there is none.
func (s *subscription) setState(current *session) {
	next := &sessionState{session: current, since: time.Now()}
	if current != nil {
		next.consumer = current.consumer.Load()
	}
	old := s.session.Load()
	if old != nil && (old.consumer == nil) == (next.consumer == nil) {
		next.since = old.since
	}
	s.session.Store(next) // only one goroutine at a time sets it
}

// run keeps a session open until the subscription stops.
func (s *subscription) run(current *session, detach func()) {
	defer s.finish(detach)
	if current.consumer.Load() != nil {
		s.logger.Info("Consuming", nil)
	} else {
		s.logger.Info("Paused: messages stay in the queue", nil)
	}
	pause := s.connection.config.Pause()
	pause.Max = min(pause.Max, longestAgain)
	for current != nil {
		begin := time.Now()
		reason := s.keep(current)
		if s.stopped() {
			break
		}
		s.leave(current)
		s.fail(reason)
		s.logger.Error("The consumer has ended, consuming again", reason, nil)
		if time.Since(begin) > pause.Max {
			pause.Reset()
		}
		if errors.Is(reason, errCancelled) {
			pause.AtLeast(wire.AfterDeletion)
		}
		if current = s.reopen(s.ctx, pause.Next()); current == nil {
			break
		}
		s.counts.reconnects.Add(1)
		s.adopt(current)
		if current.consumer.Load() != nil {
			s.logger.Info("Consuming again", nil)
		} else {
			s.logger.Info("Connected again, and paused: messages stay in the queue", nil)
		}
	}
	s.shutDown(current)
	s.logger.Info("Stopped consuming", nil)
}

// keep makes a session follow the limit, and binds the queue after a pause. It returns the reason when the session
// ends, and nil when the subscription stops.
func (s *subscription) keep(current *session) error {
	for {
		if err := s.apply(current); err != nil {
			return err
		}
		s.bind(current)
		if err := current.wait(s.stopping, s.changes); err != nil || s.stopped() {
			return err
		}
	}
}

// longestAgain bounds the pause after a session that could be opened. A message that no client can read ends each
// session at once, until the delivery limit of its queue, and the other messages of the connection wait as long.
const longestAgain = time.Second

// reopen opens a session after a pause, and again after longer ones. It returns nil when ctx ends.
func (s *subscription) reopen(ctx context.Context, wait time.Duration) *session {
	pause := s.connection.config.Pause()
	for ; ; wait = pause.Next() {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		current := s.connection.link.Await(ctx.Done())
		if current == nil {
			return nil
		}
		next, err := s.open(ctx, current)
		if err == nil || ctx.Err() != nil {
			return next
		}
		s.fail(err)
		s.logger.Error("Cannot consume again", err, watermill.LogFields{"next_attempt_within": pause.Bound().String()})
	}
}

// open declares the topic and opens a session. It does not wait for the broker, nor for Handler.Declare, when ctx ends.
func (s *subscription) open(ctx context.Context, current *wire.Connection) (*session, error) {
	type result struct {
		session *session
		err     error
	}
	opened := make(chan result, 1)
	lostAt := s.lostOn(current)
	go func() {
		session, err := s.consume(current, lostAt)
		opened <- result{session, err}
	}()
	select {
	case r := <-opened:
		return r.session, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-opened; r.session != nil {
			if c := r.session.consumer.Load(); c != nil {
				go c.giveBack()
			}
			r.session.cancel(answerTimeout)
			s.retire(r.session)
		}
	}()
	return nil, context.Cause(ctx)
}

// shutDown cancels the consumer, gives back what was not handed out, and waits for messages in flight.
func (s *subscription) shutDown(current *session) {
	contexts := time.AfterFunc(s.config.CloseTimeout, func() { close(s.expired) })
	defer contexts.Stop()
	waiting := time.AfterFunc(s.config.CloseTimeout+giveUpAfter, func() { close(s.givenUp) })
	defer waiting.Stop()

	if current != nil {
		current.cancel(answerTimeout)
		s.retiring.Go(func() { s.retire(current) })
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-s.receiver.stopped // it hands out no more
		s.workers.Wait()
		s.retiring.Wait()
		s.receiver.quit()
	}()
	hung := time.NewTimer(s.config.CloseTimeout + giveUpAfter + 2*answerTimeout)
	defer hung.Stop()
	select {
	case <-ended:
	case <-hung.C:
		s.logger.Error("Stopped although a function of the app has not returned", errNotSettled, nil)
	}
	s.setState(nil)
}

// health has what the broker does for the subscription. Why it is paused, its gate knows.
func (s *subscription) health() retry.SubscriptionHealth {
	state := s.session.Load()
	h := retry.SubscriptionHealth{
		Name: s.config.Name, Topic: s.topic, Queue: s.queue,
		Since: state.since, Calls: s.places.Calls(), Concurrency: s.config.Concurrency,
		InFlight: int(s.inFlight.Load()), Prefetch: s.config.Prefetch,
		Deliveries: s.counts.deliveries.Load(), Redeliveries: s.counts.redeliveries.Load(),
		Reconnects: s.counts.reconnects.Load(),
	}
	// While a limit changes there is no consumer for a moment.
	h.Consuming = state.consumer != nil || state.session != nil && s.limited() != 0
	if s.partitions != nil {
		h.Blocked = []string{}
	}
	for _, p := range s.partitions {
		p.addTo(&h)
	}
	if last := s.failed.Load(); last != nil {
		h.LastErrorAt, h.LastError = last.at, last.err.Error()
	}
	return h
}

// A failure is an error that ended a session, or that prevented one.
type failure struct {
	err error
	at  time.Time
}

func (s *subscription) fail(err error) { s.failed.Store(&failure{err, time.Now()}) }
