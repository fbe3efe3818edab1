package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/middleware"
)

var errHandlerEnded = errors.New("the subscriber closed the channel of the topic or of the return topic")

// handlerSubscriber subscribes to a topic and to the return topic of its handler, and delivers the messages of both on
// one channel.
type handlerSubscriber struct {
	message.Subscriber
	relay     *Relay
	name      string
	handlerOf func(topic string) string // the handler whose return topic is used, and which the failure record names
	retry     *middleware.TieredRetry   // of a Connection's handler; nil: that of the middleware that gets the message
	gate      *gate.Gate                // of a Connection's handler; nil: nothing limits it
	stopping  context.Context           // ends with Close
	stop      context.CancelFunc
	err       error // set if nothing can be subscribed
}

// Subscribe subscribes to the return topic before the topic: some backends drop messages without a subscriber.
func (s *handlerSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.err != nil {
		return nil, s.err
	}
	handler := s.handlerOf(topic)
	if err := s.claim(topic); err != nil {
		return nil, err
	}
	returnTopic, err := s.relay.config.Topic(TopicParams{Kind: ReturnTopic, Handler: handler})
	if err != nil {
		return nil, err
	}
	m := &merged{ctx: ctx, out: make(chan *message.Message), topic: topic, handler: handler, logger: s.relay.logger}
	// stopping ends before the contexts of the messages do: a handler that fails because of them counts no failure.
	stopping, stop := context.WithCancel(s.stopping)
	m.subscribed, m.end = context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, func() { stop(); m.end() })
	context.AfterFunc(m.subscribed, func() { stop(); detach() })
	m.binding = &msgctx.Subscription{Owner: s.relay, Retry: retryOf(s.retry), Gate: s.gate, Stopping: stopping.Done()}
	active := func() bool { return ctx.Err() == nil && stopping.Err() == nil }
	if err := s.relay.handlers.begin(handler, topic, active); err != nil {
		m.end()
		return nil, err
	}
	if err := s.relay.use(m.subscribed); err != nil {
		m.end()
		return nil, err
	}
	returns, err := s.Subscriber.Subscribe(m.subscribed, returnTopic)
	if err != nil {
		m.end()
		return nil, fmt.Errorf("cannot subscribe to the return topic %q of handler %q: %w", returnTopic, handler, err)
	}
	s.relay.handlers.subscribed(handler)
	messages, err := s.Subscriber.Subscribe(m.subscribed, topic)
	if err != nil {
		m.end()
		go m.forward(returns) // a decorated subscriber blocks until its channel is read
		return nil, err
	}
	m.health = s.relay.health.Begin(s.name, topic)
	var open sync.WaitGroup
	open.Go(func() { m.forward(returns) })
	open.Go(func() { m.forward(messages) })
	go func() {
		open.Wait()
		if m.ctx.Err() != nil {
			m.health.End()
		} else {
			m.health.Failed(errHandlerEnded)
		}
		close(m.out)
	}()
	return m.out, nil
}

// retryOf is nil where there is no middleware, as an interface too.
func retryOf(retry *middleware.TieredRetry) any {
	if retry == nil {
		return nil
	}
	return retry
}

// Close ends the subscriptions. A message in flight counts no failure from now on: the Pub/Sub may end its context at
// once.
func (s *handlerSubscriber) Close() error {
	s.stop()
	return s.Subscriber.Close()
}

// String returns the wrapped subscriber's name, for logs and for the poison-queue metadata.
func (s *handlerSubscriber) String() string { return structName(s.Subscriber) }

// merged is the subscriptions to a topic and to its return topic.
type merged struct {
	ctx            context.Context // of the app
	subscribed     context.Context // of both subscriptions
	end            context.CancelFunc
	out            chan *message.Message
	topic, handler string
	binding        *msgctx.Subscription
	health         *subscriptions.Subscription
	logger         watermill.LoggerAdapter
	warned         atomic.Bool
}

// forward delivers the messages of one of the two subscriptions. When it ends, the other one ends too: a handler
// without its retries, or with nothing else, must not go unnoticed.
func (m *merged) forward(in <-chan *message.Message) {
	pause := shortestPause
	for msg := range in {
		ctx := msgctx.WithOrigin(msg.Context(), m.topic, m.handler)
		msg.SetContext(msgctx.NewContext(ctx, m.binding))
		select {
		case m.out <- msg:
		case <-m.subscribed.Done():
			msg.Nack()
			continue
		}
		if !m.binding.Claimed() && m.nacked(msg) {
			sleep(m.subscribed, pause)
			pause = min(2*pause, longestPause)
		}
	}
	m.end()
}

// The pause after a nack of a handler without the retry middleware. Many Pub/Subs deliver such a message again at once.
const (
	shortestPause = 10 * time.Millisecond
	longestPause  = time.Second
)

// nacked waits until the handler has settled a message, and reports whether it has nacked it and has no retry
// middleware. It logs the first one.
func (m *merged) nacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
	case <-msg.Acked():
		return false
	case <-m.subscribed.Done():
		return false
	}
	if m.binding.Claimed() {
		return false
	}
	if !m.warned.Swap(true) {
		warning.Log(m.logger, "A message was nacked, and no retry middleware has got one of the handler's messages: "+
			"the message comes back after "+
			"10ms to 1s, again and again. Add the retry middleware to the handler or to its router, before all "+
			"middlewares that can fail",
			watermill.LogFields{"handler_name": m.handler, "topic": m.topic})
	}
	return true
}
