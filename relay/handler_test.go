package relay_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestHandlersAddedLater: a retry can be due before the handler subscribes to its return topic. gochannel would drop it.
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
	orders chan struct{} // closed when that topic is subscribed
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

// TestStoppedHandlerDoesNotStopTheOthers: a router can stop one handler alone.
func TestStoppedHandlerDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		first := a.handle("billing", ignore)
		a.handle("printing", ignore)
		a.run()
		first.Stop()
		<-first.Stopped()
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
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				return nil, errDown
			}
			return []*message.Message{msg.Copy()}, nil
		}).AddMiddleware(a.retry.Middleware)
		a.run()
		a.publish("1")
		bill := <-bills
		bill.Ack()
		assert.Equal(t, orderOf("1").Metadata, bill.Metadata, "without the failure record and without the delay")
		for range 2 {
			assert.Equal(t, "gochannel.GoChannel relay_test.closing", <-names)
		}
		a.close()
		assert.Equal(t, 1, out.closed, "closed once, after the handler has stopped")
	})
}

type closing struct {
	message.Publisher
	closed int
}

func (c *closing) Close() error { c.closed++; return nil }

// TestRouterContextSurvives: the message context keeps the values of the router and of decorators.
func TestRouterContextSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		done := make(chan context.Context, 1)
		a.router.AddSubscriberDecorators(message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
			msg.SetContext(context.WithValue(msg.Context(), key{}, "decorated"))
		}))
		a.handle("billing", func(msg *message.Message) error {
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				return errDown
			}
			done <- msg.Context()
			return nil
		})
		a.run()
		a.publish("1")
		ctx := <-done
		assert.Equal(t, "billing", message.HandlerNameFromCtx(ctx))
		assert.Equal(t, "orders", message.SubscribeTopicFromCtx(ctx))
		assert.Equal(t, "decorated", ctx.Value(key{}))
		a.close()
	})
}

type key struct{}

// TestMiddlewaresOfTheRouterDoNotWrapTheTiers: a Timeout middleware would end every wait.
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
		assert.Equal(t, map[string]int{"orders": 2}, seen)
	})
}

func TestHandlerNeedsAName(t *testing.T) {
	a := newApp(t, backoff.Schedule{time.Second})
	a.handle("", ignore)
	require.ErrorContains(t, a.router.Run(t.Context()), "the handler has no name, and its return topic is named after it")
	require.NoError(t, a.tiers.Close())
	require.NoError(t, a.pubSub.Close())
}

// On gochannel each subscription gets every message and every retry: with two of them, one message became several dead letters.
func TestHandlerThatIsSubscribedTwiceIsRefused(t *testing.T) {
	subscribe := func(c *connected, name, topic string) (end func(), err error) {
		s, err := c.Subscriber(name)
		require.NoError(c.t, err)
		_, err = s.Subscribe(c.t.Context(), topic)
		return func() { require.NoError(c.t, s.Close()) }, err
	}
	for name, second := range map[string]func(c *connected) error{
		"another subscriber": func(c *connected) error {
			_, err := subscribe(c, "all", "orders")
			return err
		},
		"another subscriber with the same return topic": func(c *connected) error {
			c.AddConsumerHandler(c.router, "all.orders", "orders", ignore)
			return c.router.Run(c.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t)
			end, err := subscribe(c, "all", "orders")
			require.NoError(t, err)
			require.ErrorContains(t, second(c), `handler "all.orders" is subscribed already`)
			_, err = subscribe(c, "all", "mails")
			require.NoError(t, err, "another topic")
			_, err = subscribe(c, "others", "orders")
			require.NoError(t, err, "another name")
			end()
			_, err = subscribe(c, "all", "orders")
			require.NoError(t, err, "the first one has ended")
			require.NoError(t, c.Close())
		})
	}
	c := connect(t)
	s, err := c.Subscriber("all")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = s.Subscribe(ctx, "orders")
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, `subscribe to "orders" once, or use another name`)
	cancel()
	_, err = s.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// TestHandlerOfTheSameNameAfterAStop: the first subscription has ended, so the second one is not refused.
func TestHandlerOfTheSameNameAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t)
		done := make(chan *message.Message, 1)
		var made calls
		c.AddConsumerHandler(c.router, "stays", "nothing", ignore)
		first := c.AddConsumerHandler(c.router, "billing", "orders", ignore)
		c.run()
		first.Stop()
		<-first.Stopped()
		c.AddConsumerHandler(c.router, "billing", "orders", failingOnce(&made, done))
		require.NoError(t, c.router.RunHandlers(t.Context()))
		c.publish("orders", "1")
		<-done
		c.close()
		assert.Len(t, made.got, 2, "one delivery and one retry")
	})
}

func TestDeadLetterTopicOfASubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t)
		s, err := c.Subscriber("all")
		require.NoError(t, err)
		letters, err := c.pubSub.Subscribe(t.Context(), "retry.dead.all.orders")
		require.NoError(t, err)
		c.router.AddConsumerHandler("archive", "orders", s, func(*message.Message) error { return errDown }).AddMiddleware(c.Middleware)
		c.run()
		c.publish("orders", "1")
		letter := <-letters
		letter.Ack()
		record, _ := retry.ReadRecord(letter.Metadata)
		assert.Equal(t, "all.orders", record.Handler)
		c.close()
	})
}
