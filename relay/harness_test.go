package relay_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the bank is down")

// app is a router with a connection on a gochannel.
type app struct {
	retry.Connection
	t         *testing.T
	pubSub    *gochannel.GoChannel
	publisher *probe // of copies
	router    *message.Router
	logs      *watermill.CaptureLoggerAdapter
	stopped   chan error
}

func newApp(t *testing.T, schedule backoff.Schedule, change ...func(*relay.Config)) *app {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	logs := watermill.NewCaptureLogger()
	a := &app{
		t: t, pubSub: pubSub, publisher: &probe{Publisher: pubSub}, router: message.NewDefaultRouter(nil), logs: logs,
		stopped: make(chan error, 1),
	}
	config := relay.Config{
		Publisher: a.publisher, AppPublisher: pubSub, Policy: retry.Policy{Schedule: schedule},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}
	for _, c := range change {
		c(&config)
	}
	var err error
	a.Connection, err = relay.Connect(config, a.logs)
	require.NoError(t, err)
	return a
}

// forTiers makes the subscribers of tiers with this function.
func forTiers(of func(stock message.Subscriber) (message.Subscriber, error)) func(*relay.Config) {
	return forSome(of, func(p relay.SubscriberParams) bool { return p.Handler == "" })
}

// forHandlers makes the subscribers of handlers with this function.
func forHandlers(of func(stock message.Subscriber) (message.Subscriber, error)) func(*relay.Config) {
	return forSome(of, func(p relay.SubscriberParams) bool { return p.Handler != "" })
}

func forSome(
	of func(stock message.Subscriber) (message.Subscriber, error), some func(relay.SubscriberParams) bool,
) func(*relay.Config) {
	return func(c *relay.Config) {
		stock := c.NewSubscriber
		c.NewSubscriber = func(p relay.SubscriberParams) (message.Subscriber, error) {
			s, err := stock(p)
			if some(p) && err == nil {
				return of(s)
			}
			return s, err
		}
	}
}

func withTier(s *scripted) func(*relay.Config) {
	return forTiers(func(message.Subscriber) (message.Subscriber, error) { return s, nil })
}

// handle adds a handler of the orders.
func (a *app) handle(name string, h message.NoPublishHandlerFunc, options ...retry.Options) *message.Handler {
	return a.AddConsumerHandler(a.router, name, "orders", h, options...)
}

func (a *app) run() {
	go func() { a.stopped <- a.router.Run(context.Background()) }()
	<-a.router.Running()
}

// publish publishes orders.
func (a *app) publish(uuids ...string) {
	for _, uuid := range uuids {
		require.NoError(a.t, a.Publisher().Publish("orders", orderOf(uuid)))
	}
}

// close ends all goroutines: a synctest bubble fails if one is left.
func (a *app) close() {
	synctest.Wait() // a message that the router is about to receive would outlive its Close
	a.stop()
}

// stop is close outside of a bubble.
func (a *app) stop() {
	require.NoError(a.t, a.router.Close())
	require.NoError(a.t, <-a.stopped)
	require.NoError(a.t, a.Close())
	require.NoError(a.t, a.Close(), "a second Close is harmless")
	require.NoError(a.t, a.pubSub.Close())
}

func orderOf(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte{0, 0xff, 'o'})
	msg.Metadata = message.Metadata{"trace": "abc", "odd": "\xff\x00"}
	return msg
}

func ignore(*message.Message) error { return nil }

// published is a message that a probe has published.
type published struct {
	topic string
	at    time.Time
	msg   *message.Message
}

// probe is a publisher that records its messages, and fails when before returns an error, which may sleep.
type probe struct {
	message.Publisher
	mu     sync.Mutex
	all    []published
	before func(topic string, msg *message.Message) error
}

func (p *probe) Publish(topic string, messages ...*message.Message) error {
	if p.before != nil {
		if err := p.before(topic, messages[0]); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, msg := range messages {
		p.all = append(p.all, published{topic, time.Now(), msg.Copy()})
	}
	return p.Publisher.Publish(topic, messages...)
}

func (p *probe) to(topic string) (found []published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.all {
		if one.topic == topic {
			found = append(found, one)
		}
	}
	return found
}

// calls records when a handler was called.
type calls struct {
	mu  sync.Mutex
	all []time.Time
}

func (c *calls) add() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, time.Now())
	return len(c.all)
}

func (c *calls) waits() (waits []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 1; i < len(c.all); i++ {
		waits = append(waits, c.all[i].Sub(c.all[i-1]))
	}
	return waits
}

// failsOnce fails at the first call for each message, and notes when each has failed and has come back.
type failsOnce struct {
	calls
	err          error
	failed, back map[string]time.Time
	done         chan struct{} // closed when all messages are back
}

func newFailsOnce() *failsOnce {
	return &failsOnce{err: errDown, failed: map[string]time.Time{}, back: map[string]time.Time{}, done: make(chan struct{})}
}

// retried runs the app with such a handler, publishes a message, and returns how long its retry has waited.
func (f *failsOnce) retried(a *app) time.Duration {
	a.handle("billing", f.handle(1))
	a.run()
	a.publish("1")
	<-f.done
	return f.waits()[0]
}

// handle is the handler of so many messages.
func (f *failsOnce) handle(messages int) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		n := f.add()
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, retried := retry.ReadRecord(msg.Metadata); !retried {
			f.failed[msg.UUID] = time.Now()
			return f.err
		}
		f.back[msg.UUID] = time.Now()
		if n == 2*messages {
			close(f.done)
		}
		return nil
	}
}

// scripted is a subscriber whose messages are sent by the test.
type scripted struct {
	mu     sync.Mutex
	fail   func(tries int) error
	tries  int
	feed   chan *message.Message // of the present subscription
	cut    chan struct{}         // closing it ends that subscription
	closed int
}

func (s *scripted) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.fail != nil {
		if err := s.fail(s.tries); err != nil {
			return nil, err
		}
	}
	feed, cut, out := make(chan *message.Message), make(chan struct{}), make(chan *message.Message)
	s.feed, s.cut = feed, cut
	go func() {
		defer close(out)
		for {
			select {
			case msg := <-feed:
				out <- msg
			case <-cut:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (s *scripted) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

func (s *scripted) send(msg *message.Message) {
	s.mu.Lock()
	feed := s.feed
	s.mu.Unlock()
	feed <- msg
}

func (s *scripted) subscriptions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

// waitingFor returns a message on a tier that is due after wait.
func waitingFor(ctx context.Context, wait time.Duration) *message.Message {
	msg := message.NewMessageWithContext(ctx, "1", []byte("order"))
	msg.Metadata = message.Metadata{
		recordkey.Failures: "1", recordkey.Handler: "billing", recordkey.Topic: "orders",
		recordkey.DueAt: time.Now().Add(wait).UTC().Format("2006-01-02T15:04:05.000Z"),
	}
	return msg
}

// greedy takes the messages from gochannel at once: gochannel holds a mutex until a message is taken, and a blocked mutex stops the clock
// of a bubble.
type greedy struct{ message.Subscriber }

func greedily(s message.Subscriber) (message.Subscriber, error) { return greedy{s}, nil }

func (o greedy) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := o.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		var waiting []*message.Message
		for {
			var deliver chan<- *message.Message
			var next *message.Message
			if len(waiting) > 0 {
				deliver, next = out, waiting[0]
			}
			select {
			case msg, open := <-in:
				if !open {
					return
				}
				waiting = append(waiting, msg)
			case deliver <- next:
				waiting = waiting[1:]
			}
		}
	}()
	return out, nil
}
