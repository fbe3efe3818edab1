package subscriber

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/retry"
)

// giveUpAfter is how long messages in flight may go on after their contexts have ended.
const giveUpAfter = time.Second

// A subscription is one Subscribe call: a loop for each of its queues, and the messages in flight, which outlive the
// sessions of the loops.
type subscription struct {
	subscriber *Subscriber
	config     *Config
	connection *Connection
	logger     watermill.LoggerAdapter
	topic      string
	queue      string
	values     context.Context // Subscribe's context, without its end
	nacks      *nackCounts

	loops    []*loop  // one, or with an Order the intake's and those of the partitions
	failures failures // of sessions that could not be opened

	partitions []*partition // with an Order: in order: the intake, then the others
	members    string       // the queue on which each process has a consumer
	balancing  sync.Mutex   // guards balanced, and makes partitions look one after the other
	balanced   time.Time    // when a partition was handed over

	receiver *receiver
	places   *gate.Places   // of calls, and of messages in flight
	workers  sync.WaitGroup // messages in flight
	running  sync.WaitGroup // loops
	retiring sync.WaitGroup // sessions that are not the current one any more
	inFlight atomic.Int64
	counts   struct{ deliveries, redeliveries, reconnects atomic.Uint64 } // of Health
	failed   atomic.Pointer[failure]                                      // the last one; nil: none

	ctx      context.Context // Subscribe's, which stop ends, too
	cancel   context.CancelCauseFunc
	stopping <-chan struct{} // of ctx; closed: nothing more is handed out
	expired  chan struct{}   // closed: the contexts of messages in flight end
	givenUp  chan struct{}   // closed: messages in flight are not waited for any more
	done     chan struct{}   // closed: all is over
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
		places:     gate.NewPlaces(subscriber.config.Concurrency, subscriber.config.inFlight()),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.stopping = s.ctx.Done()
	s.failures.pause = s.connection.config.Pause()
	if s.config.Order == nil {
		s.loops = []*loop{newPlain(s)}
	} else {
		s.loops = newPartitions(s)
	}
	s.receiver = newReceiver(s)
	return s
}

// start opens the first session of each loop. After an error, the subscription is over.
func (s *subscription) start() error {
	detach := s.config.Gate.Attach(s)
	go s.receiver.run()
	for _, l := range s.loops {
		first, err := l.first()
		if err != nil {
			s.stop()
			s.shutDown()
			s.finish(detach)
			return err
		}
		if first != nil { // Health has it when Subscribe returns
			l.adopt(first)
		}
		s.running.Go(func() { l.run(first) })
	}
	if fields := (watermill.LogFields{"queues": len(s.loops)}); s.places.Limit() == 0 {
		s.logger.Info("Paused: messages stay in the queue", fields)
	} else {
		s.logger.Info("Consuming", fields)
	}
	go func() {
		defer s.finish(detach)
		<-s.stopping
		s.shutDown()
		s.logger.Info("Stopped consuming", nil)
	}()
	return nil
}

func (s *subscription) stop() { s.cancel(ErrClosed) }

func (s *subscription) stopped() bool { return s.ctx.Err() != nil }

// finish ends what start has begun, without the receiver.
func (s *subscription) finish(detach func()) {
	detach()
	s.connection.remove(s)
	close(s.done)
}

// shutDown waits until the loops have given back what was not handed out, and for messages in flight.
func (s *subscription) shutDown() {
	contexts := time.AfterFunc(s.config.CloseTimeout, func() { close(s.expired) })
	defer contexts.Stop()
	waiting := time.AfterFunc(s.config.CloseTimeout+giveUpAfter, func() { close(s.givenUp) })
	defer waiting.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-s.receiver.stopped // it hands out no more
		s.running.Wait()
		s.giveBack(nil) // what a session has left whose loop has no other one
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
}

// health has what the broker does for the subscription. Why it is paused, its gate knows.
func (s *subscription) health() retry.SubscriptionHealth {
	h := retry.SubscriptionHealth{
		Name: s.config.Name, Topic: s.topic, Queue: s.queue,
		Calls: s.places.Calls(), Concurrency: s.config.Concurrency,
		InFlight: int(s.inFlight.Load()), Prefetch: s.config.Prefetch,
		Deliveries: s.counts.deliveries.Load(), Redeliveries: s.counts.redeliveries.Load(),
		Reconnects: s.counts.reconnects.Load(), Consuming: true,
	}
	for _, l := range s.loops {
		h.Consuming = h.Consuming && l.consumes()
		if since := time.Unix(0, l.since.Load()); since.After(h.Since) {
			h.Since = since
		}
	}
	if s.config.Order != nil {
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
