package relay_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// The context of a message ends with its subscription, and what fails then is given back. The time is real: the router
// waits with a lock, and then the time of a bubble stops.
func TestFailureAtTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.CancelFunc, *app, *message.Handler){
		"stop":           func(_ context.CancelFunc, _ *app, h *message.Handler) { h.Stop() },
		"close":          func(_ context.CancelFunc, a *app, _ *message.Handler) { assert.NoError(a.t, a.router.Close()) },
		"context of Run": func(cancel context.CancelFunc, _ *app, _ *message.Handler) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newApp(t, backoff.Schedule{10 * time.Millisecond})
			outcomes := make(chan retry.Outcome, 10)
			a.Observe(eventtest.OnEvent(func(e retry.Event) { outcomes <- e.Outcome }))
			called := make(chan struct{}, 1)
			handler := a.handle("billing", func(msg *message.Message) error {
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
			end(cancel, a, handler)
			assert.Equal(t, retry.GivenBack, <-outcomes)
			require.NoError(t, a.router.Close())
			require.NoError(t, <-a.stopped)
			assert.Empty(t, outcomes)
			assert.Empty(t, a.logs.Captured()[watermill.ErrorLogLevel])
			require.NoError(t, a.Close())
		})
	}
}

func TestShutdownGivesWaitingMessagesBackAtOnce(t *testing.T) {
	for name, stop := range map[string]func(a *app, cancel func()){
		"router closed":  func(a *app, _ func()) { require.NoError(a.t, a.router.Close()) },
		"context of Run": func(_ *app, cancel func()) { cancel() },
	} {
		bubble(t, name, func(t *testing.T) {
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
		require.NoError(t, a.Close())
		require.Error(t, ctx.Err(), "the relay waited for the acknowledgement")
		require.NoError(t, <-a.stopped)
		require.NoError(t, a.pubSub.Close())
	})
}

type slowly struct{}

func (slowly) Publish(string, ...*message.Message) error { time.Sleep(3 * time.Second); return nil }
func (slowly) Close() error                              { return nil }

// A message that cannot be forwarded is given back after a time, whatever the tier.
func TestMessageThatCannotBeForwardedIsGivenBack(t *testing.T) {
	for _, tier := range []time.Duration{10 * time.Millisecond, 10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			s := &scripted{}
			a := newApp(t, backoff.Schedule{tier}, withTier(s))
			a.publisher.before = func(string, *message.Message) error { return errDown }
			a.handle("billing", ignore)
			a.run()
			start, msg := time.Now(), waitingFor(t.Context(), tier)
			s.send(msg)
			<-msg.Nacked()
			assert.InDelta(t, tier+17*time.Second, time.Since(start), float64(4*time.Second))
			a.close()
		})
	}
}

// TestDeliveriesThatAreTakenBackInAnOutage are one line in the log.
func TestDeliveriesThatAreTakenBackInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{time.Hour}, withTier(tier))
		a.handle("billing", ignore)
		a.run()
		outage := func() {
			for range 3 {
				ctx, cancel := context.WithCancel(t.Context())
				for range 20 {
					tier.send(waitingFor(ctx, time.Hour))
				}
				time.Sleep(10 * time.Second)
				cancel()
				time.Sleep(10 * time.Second)
			}
		}
		lines := func(level watermill.LogLevel) (lines int) {
			for _, line := range a.logs.Captured()[level] {
				if strings.HasPrefix(line.Msg, "Backend has taken back messages that waited") {
					lines++
				}
			}
			return lines
		}
		outage()
		assert.Equal(t, []int{1, 59}, []int{lines(watermill.InfoLogLevel), lines(watermill.DebugLogLevel)})
		time.Sleep(time.Hour)
		outage()
		assert.Equal(t, 2, lines(watermill.InfoLogLevel))
		a.close()
	})
}

// TestCancelledDeliveryIsNotForwarded: the backend redelivers the message, and the second delivery is forwarded.
func TestCancelledDeliveryIsNotForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		w := &watcher{}
		a.Observe(w)
		a.handle("billing", ignore)
		a.run()
		ctx, cancel := context.WithCancel(t.Context())
		msg := waitingFor(ctx, 10*time.Second)
		tier.send(msg)
		time.Sleep(2 * time.Second)
		cancel()
		again := waitingFor(t.Context(), 8*time.Second)
		tier.send(again)
		synctest.Wait()
		waiting, err := w.observed.Waiting(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 1, waiting[0].Messages, "the other one waits elsewhere")
		time.Sleep(9 * time.Second)
		<-again.Acked()
		<-msg.Nacked()
		assert.Len(t, a.publisher.to("retry.return.billing"), 1)
		assert.Empty(t, a.logs.Captured()[watermill.ErrorLogLevel])
		a.close()
	})
}

func TestTierThatCannotBeSubscribedEndsRun(t *testing.T) {
	for name, change := range map[string]func(*relay.Config){
		"subscribe": withTier(&scripted{fail: func(int) error { return errDown }}),
		"factory":   forTiers(func(message.Subscriber) (message.Subscriber, error) { return nil, errDown }),
		"second tier": func(c *relay.Config) {
			pubSub := c.NewSubscriber
			c.NewSubscriber = func(p relay.SubscriberParams) (message.Subscriber, error) {
				if p.Tier == backoff.Tier(2*time.Second) {
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
		require.NoError(t, a.Close())
	}
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
			a.AddConsumerHandler(router, name, "orders", ignore)
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
		require.NoError(t, a.Close())
		assert.Equal(t, 1, tier.closed)
	})
}

// hanging is a subscriber of a tier that waits for its backend, from a subscription on.
type hanging struct {
	scripted
	from int
}

func (h *hanging) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := h.scripted.Subscribe(ctx, topic)
	if h.subscriptions() < h.from {
		return in, err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCloseEndsASubscriptionThatBegins: the backend may not answer for minutes.
func TestCloseEndsASubscriptionThatBegins(t *testing.T) {
	for name, from := range map[string]int{"the first": 1, "a further one": 2} {
		bubble(t, name, func(t *testing.T) {
			tier := &hanging{from: from}
			a := newApp(t, backoff.Schedule{time.Second}, forTiers(func(message.Subscriber) (message.Subscriber, error) {
				return tier, nil
			}))
			s, err := a.Subscriber("billing") // a router whose Run fails leaves a goroutine
			require.NoError(t, err)
			subscribed := make(chan error, 1)
			go func() {
				_, err := s.Subscribe(context.Background(), "orders")
				subscribed <- err
			}()
			synctest.Wait()
			if from > 1 {
				require.NoError(t, <-subscribed)
				close(tier.cut)
			}
			time.Sleep(time.Second)
			require.Equal(t, from, tier.subscriptions())
			require.NoError(t, a.Close())
			if from == 1 {
				require.ErrorIs(t, <-subscribed, context.Canceled)
			}
			require.NoError(t, a.pubSub.Close())
		})
	}
}
