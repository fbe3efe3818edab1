package subscriber

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
	"github.com/tieredretry/watermill-retry/retry"
)

// GiveUpAfter is how long messages in flight may go on after their contexts have ended.
const GiveUpAfter = time.Second

// A Subscription is one Subscribe call: a loop for each of its queues, and the messages in flight, which outlive the
// sessions of the loops.
type Subscription struct {
	*dispatch.Dispatcher
	Config *Config
	Topic  string
	Queue  string
	Values context.Context // Subscribe's context, without its end

	subscriber *Subscriber
	connection *Connection
	loops      []*Loop        // one for each queue
	failures   failures       // the failures of sessions that could not be opened
	running    sync.WaitGroup // loops
	retiring   sync.WaitGroup // sessions that are not the current one any more
	reconnects atomic.Uint64
	failed     atomic.Pointer[failure] // the last one; nil: none
	cancel     context.CancelCauseFunc // ends Stopping
	done       chan struct{}           // closed: all is over
}

// Begin returns a Subscription of the topic's queue that has no loops. Start starts it.
func (s *Subscriber) Begin(ctx context.Context, topic string) (*Subscription, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	queue, err := s.queueOf(topic)
	if err != nil {
		return nil, err
	}
	stopping, cancel := context.WithCancelCause(ctx)
	c := &s.config
	return &Subscription{
		Dispatcher: dispatch.New(stopping, dispatch.Config{
			Handler: s.handler, Logger: s.logger.With(watermill.LogFields{"topic": topic, "queue": queue}),
			Places: gate.NewPlaces(c.Concurrency, c.inFlight()), LongestNack: c.LongestNack,
		}),
		Config: c, Topic: topic, Queue: queue, Values: context.WithoutCancel(ctx), subscriber: s,
		connection: s.connection, failures: failures{pause: s.connection.config.Pause()}, cancel: cancel,
		done: make(chan struct{}),
	}, nil
}

// Start opens the first session of each loop, and returns the messages. The valve is that of the subscription. After an
// error, the subscription is over.
func (s *Subscription) Start(valve gate.Valve) (<-chan *message.Message, error) {
	if !s.connection.add(s) {
		s.stop()
		return nil, ErrClosed
	}
	detach := s.Config.Gate.Attach(valve)
	go s.Run()
	for _, l := range s.loops {
		first, err := l.first()
		if err != nil {
			s.stop()
			s.shutDown()
			s.finish(detach)
			return nil, err
		}
		if first != nil { // Health has it when Subscribe returns
			l.adopt(first)
		}
		s.running.Go(func() { l.run(first) })
	}
	state := "Consuming"
	if s.Places.Limit() == 0 {
		state = "Paused: messages stay in the queue"
	}
	s.Logger.Info(state, watermill.LogFields{"queues": len(s.loops)})
	go func() {
		defer s.finish(detach)
		<-s.Stopping.Done()
		s.shutDown()
		s.Logger.Info("Stopped consuming", nil)
	}()
	return s.Out, nil
}

func (s *Subscription) stop() { s.cancel(ErrClosed) }

func (s *Subscription) stopped() bool { return s.Stopping.Err() != nil }

// finish ends what Start has begun, without the dispatcher.
func (s *Subscription) finish(detach func()) {
	detach()
	s.connection.remove(s)
	close(s.done)
}

// shutDown waits until the loops have given back what was not handed out, and for messages in flight.
func (s *Subscription) shutDown() {
	contexts := time.AfterFunc(s.Config.CloseTimeout, func() { close(s.Expired) })
	defer contexts.Stop()
	waiting := time.AfterFunc(s.Config.CloseTimeout+GiveUpAfter, s.GiveUp)
	defer waiting.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.running.Wait()
		for _, l := range s.loops {
			l.kind.Rest()
		}
		s.Workers.Wait()
		s.retiring.Wait()
		s.Quit()
	}()
	hung := time.NewTimer(s.Config.CloseTimeout + GiveUpAfter + 2*channel.AnswerTimeout)
	defer hung.Stop()
	select {
	case <-ended:
	case <-hung.C:
		s.Logger.Error("Stopped although a function of the app has not returned", dispatch.ErrNotSettled, nil)
	}
}

// Ack sends the ack of an arrival, and reports whether the channel takes it.
func (s *Subscription) Ack(n *channel.Session, a *dispatch.Arrival) bool {
	s.Forget(a)
	sent := n.Ack(a.Delivery.DeliveryTag)
	if !sent {
		s.Logger.Debug("A message was acked after its channel was closed: the broker delivers it again",
			watermill.LogFields{"message_uuid": a.Msg.UUID})
	}
	return sent
}

// health has what the broker does for the subscription. Why it is paused, its gate knows.
func (s *Subscription) health() retry.SubscriptionHealth {
	h := retry.SubscriptionHealth{
		Name: s.Config.Name, Topic: s.Topic, Queue: s.Queue,
		Calls: s.Places.Calls(), Concurrency: s.Config.Concurrency,
		InFlight: int(s.InFlight.Load()), Prefetch: s.Config.Prefetch,
		Deliveries: s.Counts.Deliveries.Load(), Redeliveries: s.Counts.Redeliveries.Load(),
		Reconnects: s.reconnects.Load(), Consuming: true,
	}
	for _, l := range s.loops {
		// While a limit changes, and when a pause is over, there is no consumer for a moment.
		h.Consuming = h.Consuming && (l.consuming.Load() || l.rests.Load() && s.Places.Limit() > 0)
		if since := time.Unix(0, l.Since.Load()); since.After(h.Since) {
			h.Since = since
		}
		l.kind.AddTo(&h)
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

func (s *Subscription) fail(err error) { s.failed.Store(&failure{err, time.Now()}) }

var _ gate.Valve = (*Subscription)(nil)

// Limit implements gate.Valve.
func (s *Subscription) Limit(n int) {
	s.Places.Set(n)
	for _, l := range s.loops {
		l.look()
	}
}

// Taken implements gate.Valve.
func (s *Subscription) Taken() int { return int(s.Backlog.Load()) + s.Places.Taken() }

// fetch returns the bound and the prefetch of a consumer that begins. Under a limit the prefetch is the limit: the
// messages that wait would otherwise be kept from other consumers, and counted when they go back.
func (s *Subscription) fetch() (bound, prefetch int) {
	if bound = s.Places.Limit(); bound == s.Config.Concurrency {
		return bound, s.Config.Prefetch
	}
	return bound, bound
}
