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
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

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

func withTier(s *scripted) func(*relay.Config) {
	return func(c *relay.Config) {
		c.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return s, nil }
	}
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

func ignore(*message.Message) error { return nil }

// Only the end of the subscription is a shutdown. The context of a message ends in all cases. The time is real: the router waits with a
// lock, and then the time of a bubble stops.
func TestFailureAtTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout time.Duration // set outside of the retry middleware
		end     func(context.CancelFunc, *app, *message.Handler)
		want    []retry.Outcome
	}{
		"deadline":       {50 * time.Millisecond, func(context.CancelFunc, *app, *message.Handler) {}, []retry.Outcome{retry.Retried, retry.Recovered}},
		"stop":           {time.Hour, func(_ context.CancelFunc, _ *app, h *message.Handler) { h.Stop() }, []retry.Outcome{retry.GivenBack}},
		"close":          {time.Hour, func(_ context.CancelFunc, a *app, _ *message.Handler) { assert.NoError(a.t, a.router.Close()) }, []retry.Outcome{retry.GivenBack}},
		"context of Run": {time.Hour, func(cancel context.CancelFunc, _ *app, _ *message.Handler) { cancel() }, []retry.Outcome{retry.GivenBack}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t, backoff.Schedule{10 * time.Millisecond})
			outcomes := make(chan retry.Outcome, 10)
			logger := watermill.NewCaptureLogger()
			a.tiers.Observe(eventtest.OnEvent(func(e retry.Event) { outcomes <- e.Outcome }))
			policy := retry.Policy{Schedule: backoff.Schedule{10 * time.Millisecond}}
			var err error
			a.retry, err = retrymw.New(policy, a.tiers.Backend(), logger)
			require.NoError(t, err)
			a.router.AddMiddleware(middleware.Timeout(test.timeout)) // before the retry middleware
			called := make(chan struct{}, 1)
			handler := a.handle("billing", func(msg *message.Message) error {
				if _, retried := retry.ReadRecord(msg.Metadata); retried {
					return nil
				}
				called <- struct{}{}
				<-msg.Context().Done()
				return msg.Context().Err()
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { a.stopped <- a.router.Run(ctx) }()
			<-a.router.Running()
			a.publish("1")
			<-called
			test.end(cancel, a, handler)
			for _, want := range test.want {
				assert.Equal(t, want, <-outcomes)
			}
			require.NoError(t, a.router.Close())
			require.NoError(t, <-a.stopped)
			assert.Empty(t, outcomes)
			assert.Empty(t, logger.Captured()[watermill.ErrorLogLevel])
			require.NoError(t, a.tiers.Close())
			require.NoError(t, a.pubSub.Close())
		})
	}
}

func TestShutdownGivesWaitingMessagesBackAtOnce(t *testing.T) {
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

// TestLastAcknowledgementIsSent: if the subscription ended first, every message in flight would come twice.
func TestLastAcknowledgementIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{time.Second}, withTier(tier))
		a.publisher.Publisher = slowly{} // the shutdown begins during the publish
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

// TestMessageIsNotHeldBeyondItsHop: the backend would redeliver it.
func TestMessageIsNotHeldBeyondItsHop(t *testing.T) {
	for tier, forwardLimit := range map[time.Duration]time.Duration{
		10 * time.Millisecond: time.Second, 10 * time.Second: 10 * time.Second, time.Hour: 20 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{}
			a := newApp(t, backoff.Schedule{tier}, withTier(s))
			a.publisher.fail = func(string, int) error { return errDown }
			a.handle("billing", ignore)
			a.run()
			start, msg := time.Now(), waitingFor(t.Context(), 0)
			s.send(msg)
			<-msg.Nacked()
			assert.LessOrEqual(t, time.Since(start), forwardLimit)
			assert.Greater(t, time.Since(start), forwardLimit/4)
			start, msg = time.Now(), waitingFor(t.Context(), 2*time.Hour)
			s.send(msg)
			<-msg.Nacked()
			assert.LessOrEqual(t, time.Since(start), max(forwardLimit, hopAndSlack(tier)))
			a.close()
		})
	}
}

// hopAndSlack is one hop of a tier with the default MaxHop, plus what clocks may differ.
func hopAndSlack(tier time.Duration) time.Duration {
	hop := min(tier, 20*time.Second)
	return hop + hop/20 + 2*time.Millisecond
}

// TestCancelledDeliveryIsNotForwarded: the backend redelivers the message, and the second delivery is forwarded.
func TestCancelledDeliveryIsNotForwarded(t *testing.T) {
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

// Not in a synctest bubble, like all tests in which Run fails: the router then leaves a goroutine behind.
func TestClosedRelayRefusesHandlers(t *testing.T) {
	a := newApp(t, backoff.Schedule{time.Second})
	require.NoError(t, a.tiers.Close())
	require.NoError(t, a.tiers.Close(), "a second Close is harmless")
	a.handle("billing", ignore)
	require.ErrorIs(t, a.router.Run(t.Context()), retry.ErrClosed)
	require.NoError(t, a.pubSub.Close())
}

// TestEndedSubscriptionIsMadeAgain: a tier without a subscription would keep its messages for ever.
func TestEndedSubscriptionIsMadeAgain(t *testing.T) {
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

// TestOneRelayOnTwoRouters: the tiers run until the last handler has stopped, and start again with the next one.
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
		assert.Equal(t, 1, tier.subscriptions(), "one subscription for both routers: with a second one, gochannel would deliver every message twice")
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

// open ignores Close: the routers of the test share one subscriber.
type open struct{ message.Subscriber }

func (open) Close() error { return nil }

func TestErrorsOfClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
			c.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return stuck{&scripted{}}, nil }
		})
		a.handle("billing", ignore)
		a.run()
		require.NoError(t, a.router.Close())
		require.NoError(t, <-a.stopped)
		require.ErrorContains(t, a.tiers.Close(), `cannot close the subscriber of topic "retry.1s"`)
		require.NoError(t, a.pubSub.Close())
	})
}

type stuck struct{ *scripted }

func (stuck) Close() error { return errors.New("stuck") }
