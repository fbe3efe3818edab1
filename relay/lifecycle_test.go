package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

// scripted is a subscriber whose subscriptions a test feeds by hand.
type scripted struct {
	mu     sync.Mutex
	fail   func(tries int) error
	tries  int
	feed   chan *message.Message // of the subscription that lives
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

func withTier(s *scripted) func(*relay.Config) {
	return func(c *relay.Config) {
		c.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return s, nil }
	}
}

// waitingFor is a message on a tier, with a context of the test's.
func waitingFor(ctx context.Context, wait time.Duration) *message.Message {
	msg := message.NewMessageWithContext(ctx, "1", []byte("order"))
	msg.Metadata = message.Metadata{
		retrymw.FailuresKey: "1", retrymw.HandlerKey: "billing", retrymw.TopicKey: "orders",
		retrymw.DueAtKey: time.Now().Add(wait).UTC().Format("2006-01-02T15:04:05.000Z"),
	}
	return msg
}

func ignore(*message.Message) error { return nil }

func TestShutdownGivesBackAtOnceWhatIsHeld(t *testing.T) {
	for name, stop := range map[string]func(a *app, cancel func()){
		"router closed":  func(a *app, _ func()) { require.NoError(a.t, a.router.Close()) },
		"context of Run": func(_ *app, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tier := &scripted{}
				a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
				a.handle("billing", ignore)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { a.stopped <- a.router.Run(ctx) }()
				<-a.router.Running()
				msg := waitingFor(t.Context(), 10*time.Second)
				tier.send(msg)
				time.Sleep(time.Second)
				start := time.Now()
				stop(a, cancel)
				<-msg.Nacked()
				assert.Zero(t, time.Since(start))
				a.close()
				assert.Zero(t, time.Since(start))
				assert.Empty(t, a.publisher.to("retry.return.billing"))
				assert.Equal(t, 1, tier.closed)
			})
		})
	}
}

// TestLastAcknowledgementIsSent: a subscription that ends first would make a duplicate of every message in flight.
func TestLastAcknowledgementIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{time.Second}, withTier(tier))
		a.publisher.Publisher = slowly{} // and a shutdown meanwhile
		a.handle("billing", ignore)
		a.run()
		ctx, sent := context.WithCancel(t.Context())
		msg := waitingFor(ctx, 0)
		tier.send(msg)
		time.Sleep(time.Second)
		go func() {
			<-msg.Acked()
			time.Sleep(50 * time.Millisecond)
			sent()
		}()
		require.NoError(t, a.router.Close())
		require.NoError(t, a.tiers.Close())
		require.Error(t, ctx.Err(), "the relay waited for the acknowledgement")
		require.NoError(t, <-a.stopped)
		require.NoError(t, a.pubSub.Close())
	})
}

type slowly struct{}

func (slowly) Publish(string, ...*message.Message) error { time.Sleep(3 * time.Second); return nil }
func (slowly) Close() error                              { return nil }

// TestDeliveryThatTheBackendGaveUpOnIsNotPublished: it is handed out again, and then it is.
func TestDeliveryThatTheBackendGaveUpOnIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		a.handle("billing", ignore)
		a.run()
		ctx, cancel := context.WithCancel(t.Context())
		msg := waitingFor(ctx, 10*time.Second)
		tier.send(msg)
		time.Sleep(2 * time.Second)
		cancel()
		again := waitingFor(t.Context(), 8*time.Second)
		tier.send(again)
		time.Sleep(9 * time.Second)
		<-again.Acked()
		<-msg.Nacked()
		assert.Len(t, a.publisher.to("retry.return.billing"), 1)
		a.close()
	})
}

func TestTierThatCannotBeSubscribedEndsRun(t *testing.T) {
	for name, change := range map[string]func(*relay.Config){
		"subscribe": withTier(&scripted{fail: func(int) error { return errDown }}),
		"factory": func(c *relay.Config) {
			c.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return nil, errDown }
		},
		"second tier": func(c *relay.Config) {
			pubSub := c.NewSubscriber
			c.NewSubscriber = func(p relay.SubscriberParams) (message.Subscriber, error) {
				if p.Topic == "retry.2s" {
					return nil, errDown
				}
				return pubSub(p)
			}
		},
	} {
		a := newApp(t, backoff.Schedule{time.Second, 2 * time.Second}, change)
		a.handle("billing", ignore)
		err := a.router.Run(t.Context())
		require.ErrorIs(t, err, errDown, name)
		require.ErrorContains(t, err, "cannot subscribe tier ", name)
		require.NoError(t, a.tiers.Close())
		require.NoError(t, a.pubSub.Close())
	}
}

// Outside of a bubble, as all tests in which Run fails: the router leaves a goroutine then.
func TestClosedRelayRefusesHandlers(t *testing.T) {
	a := newApp(t, backoff.Schedule{time.Second})
	require.NoError(t, a.tiers.Close())
	require.NoError(t, a.tiers.Close(), "a second Close is harmless")
	a.handle("billing", ignore)
	require.ErrorContains(t, a.router.Run(t.Context()), "the relay is closed")
	require.NoError(t, a.pubSub.Close())
}

// TestSubscriptionThatEndsIsMadeAgain: a tier without one would keep its messages for ever.
func TestSubscriptionThatEndsIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{fail: func(tries int) error {
			if tries == 2 || tries == 3 {
				return errDown
			}
			return nil
		}}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		a.handle("billing", ignore)
		a.run()
		msg := waitingFor(t.Context(), 10*time.Second)
		tier.send(msg)
		close(tier.cut)
		<-msg.Nacked()
		time.Sleep(20 * time.Second)
		again := waitingFor(t.Context(), 0)
		tier.send(again)
		<-again.Acked()
		assert.Equal(t, 4, tier.subscriptions())
		a.close()
	})
}

// TestHandlersAddedLater: a retry may be due before the return topic of a late handler is subscribed, and gochannel would drop it.
func TestHandlersAddedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Millisecond})
		slow := slowReturn{Subscriber: a.pubSub, orders: make(chan struct{})}
		var c calls
		done := make(chan struct{})
		a.router.AddConsumerHandler("other", "nothing", a.pubSub, ignore)
		a.run()
		a.tiers.AddConsumerHandler(a.router, "billing", "orders", slow, func(msg *message.Message) error {
			if c.add(msg) == 1 {
				return errDown
			}
			close(done)
			return nil
		}).AddMiddleware(a.retry.Middleware)
		go func() {
			<-slow.orders
			a.publish("1")
		}()
		require.NoError(t, a.router.RunHandlers(context.Background()))
		<-done
		a.close()
	})
}

// slowReturn subscribes return topics slowly.
type slowReturn struct {
	message.Subscriber
	orders chan struct{} // closed once that topic is subscribed
}

func (s slowReturn) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if strings.HasPrefix(topic, "retry.return.") {
		time.Sleep(time.Second)
	}
	if topic == "orders" {
		defer close(s.orders)
	}
	return s.Subscriber.Subscribe(ctx, topic)
}

// TestOneRelayOnTwoRouters: the tiers go on until the last handler has stopped, and start again with the next.
func TestOneRelayOnTwoRouters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		feed := func() *message.Message {
			msg := waitingFor(t.Context(), 0)
			tier.send(msg)
			synctest.Wait()
			return msg
		}
		run := func(name string) (*message.Router, func()) {
			router := message.NewDefaultRouter(nil)
			a.tiers.AddConsumerHandler(router, name, "orders", open{a.pubSub}, ignore)
			stopped := make(chan error, 1)
			go func() { stopped <- router.Run(context.Background()) }()
			<-router.Running()
			return router, func() { require.NoError(t, router.Close()); require.NoError(t, <-stopped) }
		}
		_, closeFirst := run("billing")
		_, closeSecond := run("printing")
		assert.Equal(t, 1, tier.subscriptions(), "one subscription for both: a second one would double the messages on a gochannel")
		closeFirst()
		<-feed().Acked()
		closeSecond()
		synctest.Wait()
		_, closeThird := run("reading")
		<-feed().Acked()
		assert.Equal(t, 2, tier.subscriptions())
		closeThird()
		require.NoError(t, a.tiers.Close())
		assert.Equal(t, 1, tier.closed)
		require.NoError(t, a.pubSub.Close())
	})
}

// open stays open when a router closes it, as a subscriber of its own would.
type open struct{ message.Subscriber }

func (open) Close() error { return nil }

// TestStoppedHandlerDoesNotStopTheOthers: a router's handler can be stopped alone.
func TestStoppedHandlerDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		first := a.handle("billing", ignore)
		a.handle("printing", ignore)
		a.run()
		first.Topic.Stop()
		first.Return.Stop()
		<-first.Return.Stopped()
		msg := waitingFor(t.Context(), 0)
		tier.send(msg)
		<-msg.Acked()
		a.close()
	})
}

func TestProducedMessagesAndTheirPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		out := &closing{Publisher: a.pubSub}
		bills, err := a.pubSub.Subscribe(t.Context(), "bills")
		require.NoError(t, err)
		names := make(chan string, 2)
		a.tiers.AddHandler(a.router, "billing", "orders", a.pubSub, "bills", out, func(msg *message.Message) ([]*message.Message, error) {
			names <- message.SubscriberNameFromCtx(msg.Context()) + " " + message.PublisherNameFromCtx(msg.Context())
			if _, retried := retrymw.ReadRecord(msg.Metadata); !retried {
				return nil, errDown
			}
			return []*message.Message{msg.Copy()}, nil
		}).AddMiddleware(a.retry.Middleware)
		a.run()
		a.publish("1")
		bill := <-bills
		bill.Ack()
		assert.Equal(t, orderOf("1").Metadata, bill.Metadata, "without the record, and without the delay")
		for range 2 {
			assert.Equal(t, "gochannel.GoChannel relay_test.closing", <-names)
		}
		a.close()
		assert.Equal(t, 1, out.closed, "once, after both handlers have stopped")
	})
}

type closing struct {
	message.Publisher
	closed int
}

func (c *closing) Close() error { c.closed++; return nil }

// TestRouterContextSurvives beside the origin.
func TestRouterContextSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		done := make(chan context.Context, 1)
		a.router.AddSubscriberDecorators(message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
			msg.SetContext(context.WithValue(msg.Context(), key{}, "decorated"))
		}))
		a.handle("billing", func(msg *message.Message) error {
			if _, retried := retrymw.ReadRecord(msg.Metadata); !retried {
				return errDown
			}
			done <- msg.Context()
			return nil
		})
		a.run()
		a.publish("1")
		ctx := <-done
		assert.Equal(t, "billing.retry", message.HandlerNameFromCtx(ctx))
		assert.Equal(t, "retry.return.billing", message.SubscribeTopicFromCtx(ctx))
		assert.Equal(t, "decorated", ctx.Value(key{}))
		a.close()
	})
}

type key struct{}

// TestMiddlewaresOfTheRouterDoNotWrapTheTiers: a Timeout would end every wait.
func TestMiddlewaresOfTheRouterDoNotWrapTheTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{10 * time.Second})
		seen := map[string]int{}
		var mu sync.Mutex
		a.router.AddMiddleware(a.retry.Middleware, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				mu.Lock()
				seen[message.SubscribeTopicFromCtx(msg.Context())]++
				mu.Unlock()
				return h(msg)
			}
		})
		var c calls
		done := make(chan struct{})
		a.tiers.AddConsumerHandler(a.router, "billing", "orders", a.pubSub, func(msg *message.Message) error {
			if c.add(msg) == 1 {
				return errDown
			}
			close(done)
			return nil
		})
		a.run()
		a.publish("1")
		<-done
		a.close()
		assert.Equal(t, map[string]int{"orders": 1, "retry.return.billing": 1}, seen)
	})
}

func TestHandlerNeedsAName(t *testing.T) {
	a := newApp(t, backoff.Schedule{time.Second})
	a.handle("", ignore)
	require.ErrorContains(t, a.router.Run(t.Context()), "a handler without a name has no return topic")
	require.NoError(t, a.tiers.Close())
	require.NoError(t, a.pubSub.Close())
}

func TestErrorsOfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
			c.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return stuck{&scripted{}}, nil }
		})
		a.handle("billing", ignore)
		a.run()
		require.NoError(t, a.router.Close())
		require.NoError(t, <-a.stopped)
		require.ErrorContains(t, a.tiers.Close(), "cannot close the subscriber of retry.1s")
		require.NoError(t, a.pubSub.Close())
	})
}

type stuck struct{ *scripted }

func (stuck) Close() error { return errors.New("stuck") }
