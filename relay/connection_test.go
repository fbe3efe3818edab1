package relay_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// A handler is added while others run. Its tiers start at once, and a retry can be due before the handler subscribes to
// its return topic: gochannel would drop it.
func TestHandlerThatIsAddedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		subscribed := make(chan struct{})
		a := newApp(t, backoff.Schedule{time.Second}, forHandlers(func(s message.Subscriber) (message.Subscriber, error) {
			return slowReturn{s, subscribed}, nil
		}))
		a.router.AddConsumerHandler("other", "nothing", a.pubSub, ignore)
		a.run()
		var later calls
		done := make(chan struct{})
		a.handle("billing", func(msg *message.Message) error {
			if later.add() < 3 {
				return errDown
			}
			close(done)
			return nil
		}, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Millisecond, time.Hour}, Jitter: 0.2}})
		go func() {
			<-subscribed
			a.publish("1")
		}()
		require.NoError(t, a.router.RunHandlers(context.Background()))
		<-done
		assert.GreaterOrEqual(t, later.waits()[1], time.Hour)
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

// With a group, the topics of the retries belong to the group and its topic, without one to the handler.
func TestTopicsOfTheRetries(t *testing.T) {
	for name, row := range map[string]struct {
		group, own string // of the connection, and of the handler
		want       []string
		handler    string
	}{
		"no groups": {"", "", []string{"retry.1s", "retry.return.all.orders", "retry.dead.all.orders"}, "all.orders"},
		"group":     {"eu", "", []string{"retry.1s", "retry.return.eu.orders", "retry.dead.eu.orders"}, "all"},
		"own group": {"eu", "us", []string{"retry.1s", "retry.return.us.orders", "retry.dead.us.orders"}, "all"},
	} {
		bubble(t, name, func(t *testing.T) {
			a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) { c.Group = row.group })
			s, err := a.Subscriber("all", retry.Options{Group: row.own})
			require.NoError(t, err)
			letters, err := a.pubSub.Subscribe(t.Context(), row.want[2])
			require.NoError(t, err)
			a.router.AddConsumerHandler("archive", "orders", s, func(*message.Message) error { return errDown }).AddMiddleware(a.Middleware)
			a.run()
			a.publish("1")
			letter := <-letters
			letter.Ack()
			record, _ := retry.ReadRecord(letter.Metadata)
			assert.Equal(t, row.handler, record.Handler)
			for _, topic := range row.want {
				require.Len(t, a.publisher.to(topic), 1, topic)
				assert.Equal(t, topic == "retry.1s" && row.group != "", a.publisher.to(topic)[0].msg.Metadata["retry_return_to"] != "", topic)
			}
			a.close()
		})
	}
}

// Which of two handlers of a group and a topic retries a message is chance.
func TestDifferentSchedulesOfOneReturnTopicAreNamedAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second, 5 * time.Second}, func(c *relay.Config) { c.Group = "eu" })
		hour := &retry.Policy{Schedule: backoff.Schedule{time.Hour}}
		handlers := []*message.Handler{a.handle("first", ignore), a.handle("the same schedule", ignore)}
		a.handle("another group", ignore, retry.Options{Group: "us", Policy: hour})
		a.AddConsumerHandler(a.router, "another topic", "prints", ignore, retry.Options{Policy: hour})
		a.run()
		require.Empty(t, a.logs.Captured()[watermill.ErrorLogLevel])
		a.handle("second", ignore, retry.Options{Policy: hour})
		require.NoError(t, a.router.RunHandlers(t.Context()))
		lines := a.logs.Captured()[watermill.ErrorLogLevel]
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0].Msg, "Options.Policy.Schedule is not that of another handler")
		other := lines[0].Fields["other_handler"] // the router starts its handlers in no order
		assert.Contains(t, []any{"first", "the same schedule"}, other)
		assert.Equal(t, watermill.LogFields{
			"topic": "orders", "schedule": "1h", "other_handler": other, "other_schedule": "1s 5s",
		}, lines[0].Fields)

		for _, h := range handlers {
			h.Stop()
			<-h.Stopped()
		}
		a.handle("after the end of the first two", ignore, retry.Options{Policy: hour})
		require.NoError(t, a.router.RunHandlers(t.Context()))
		assert.Len(t, a.logs.Captured()[watermill.ErrorLogLevel], 1)
		a.close()
	})
}

func bubble(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// The calls of a handler are bounded over its topic and its return topic, whatever the Pub/Sub delivers. They run together.
func TestCallsOfAHandlerAreBounded(t *testing.T) {
	for given, want := range map[int]int64{0: 16, 3: 3} {
		synctest.Test(t, func(t *testing.T) {
			a := newApp(t, backoff.Schedule{time.Second}, forHandlers(greedily))
			var running, most atomic.Int64
			f := newFailsOnce()
			count, together := f.handle(100), make(chan struct{})
			full := sync.OnceFunc(func() { close(together) })
			a.handle("billing", func(msg *message.Message) error {
				defer running.Add(-1)
				if now := running.Add(1); now > most.Load() {
					most.Store(now)
				}
				if most.Load() == want {
					full()
				}
				<-together
				time.Sleep(100 * time.Millisecond)
				return count(msg)
			}, retry.Options{Concurrency: given})
			a.run()
			for i := range 100 {
				a.publish(fmt.Sprint(i))
			}
			<-f.done
			assert.Equal(t, want, most.Load())
			a.close()
		})
	}
}

// On gochannel each subscription gets every message and every retry: with two of them, one message became several dead letters.
func TestHandlerThatIsSubscribedTwiceIsRefused(t *testing.T) {
	subscribe := func(a *app, name, topic string) (closes, cancels func(), err error) {
		s, err := a.Subscriber(name)
		require.NoError(a.t, err)
		ctx, cancel := context.WithCancel(a.t.Context())
		_, err = s.Subscribe(ctx, topic)
		return func() { require.NoError(a.t, s.Close()) }, cancel, err
	}
	for name, second := range map[string]func(a *app) error{
		"another subscriber": func(a *app) error {
			_, _, err := subscribe(a, "all", "orders")
			return err
		},
		"another subscriber with the same return topic": func(a *app) error {
			a.handle("all.orders", ignore)
			return a.router.Run(a.t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, backoff.Schedule{time.Second})
			end, _, err := subscribe(a, "all", "orders")
			require.NoError(t, err)
			require.ErrorContains(t, second(a), `handler "all.orders" is subscribed already`)
			_, _, err = subscribe(a, "all", "mails")
			require.NoError(t, err, "another topic")
			_, _, err = subscribe(a, "others", "orders")
			require.NoError(t, err, "another name")
			_, _, err = subscribe(a, "again", "retry.return.again.x")
			require.ErrorContains(t, err, `"retry.return.again.x" is a return topic`)
			end()
			_, end, err = subscribe(a, "all", "orders")
			require.NoError(t, err, "the first one has ended")
			_, _, err = subscribe(a, "all", "orders")
			require.ErrorContains(t, err, `subscribe to "orders" once, or use another name`)
			end()
			_, _, err = subscribe(a, "all", "orders")
			require.NoError(t, err, "the context of the second one has ended")
			require.NoError(t, a.Close())
		})
	}
}

// refusing makes the app's publisher refuse bills.
func refusing(refuses func(*message.Message) bool) func(*relay.Config) {
	return func(c *relay.Config) {
		c.AppPublisher = &probe{Publisher: c.AppPublisher, before: func(topic string, msg *message.Message) error {
			if topic == "bills" && refuses(msg) {
				return errDown
			}
			return nil
		}}
	}
}

func produce(msg *message.Message) ([]*message.Message, error) {
	return []*message.Message{msg.Copy()}, nil
}

// A message whose produced one is never taken is retried as after any other failure, and does not hold up the others.
func TestProducedMessageThatCannotBePublishedIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second, 5 * time.Second}, refusing(func(msg *message.Message) bool { return msg.UUID == "large" }))
		bills, err := a.pubSub.Subscribe(t.Context(), "bills")
		require.NoError(t, err)
		dead, err := a.pubSub.Subscribe(t.Context(), "retry.dead.billing")
		require.NoError(t, err)
		var calls []time.Duration
		began := time.Now()
		a.AddHandler(a.router, "billing", "orders", "bills", func(msg *message.Message) ([]*message.Message, error) {
			if msg.Metadata["odd"] = ""; msg.UUID == "large" {
				calls = append(calls, time.Since(began).Truncate(time.Second))
			}
			return produce(msg)
		}, retry.Options{Concurrency: 1})
		a.run()
		a.publish("large")
		for i := range 100 {
			a.publish(fmt.Sprint(i))
			(<-bills).Ack()
		}
		assert.Zero(t, time.Since(began))
		letter := <-dead
		letter.Ack()
		assert.Equal(t, []time.Duration{0, time.Second, 6 * time.Second}, calls)
		assert.Equal(t, "\xff\x00", letter.Metadata["odd"], "not as its handler has changed it")
		record, _ := retry.ReadRecord(letter.Metadata)
		assert.Equal(t, retry.DeadReasonExhausted, record.DeadReason)
		assert.Equal(t, "cannot publish what the handler produced: "+errDown.Error(), record.Reason)
		a.close()
	})
}

func TestBreakerCountsAMessageWhoseProducedOneCannotBePublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Hour}, refusing(func(*message.Message) bool { return true }), func(c *relay.Config) {
			c.Policy.Breaker = &retry.Breaker{Least: 4, Ratio: .9}
		}, forHandlers(greedily))
		a.AddHandler(a.router, "billing", "orders", "bills", produce)
		a.run()
		paused := func() []string { return a.Health().Subscriptions[0].Paused }
		a.publish("1", "2", "3")
		synctest.Wait()
		assert.Empty(t, paused())
		a.publish("4")
		synctest.Wait()
		assert.NotEmpty(t, paused())
		a.close()
	})
}

// A function of the app can end the goroutine in which a nacked message is retried.
func TestGoroutineThatEndsWhileANackIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := &scripted{}
		by := byTopic{"orders": orders, "retry.return.billing": {}}
		a := newApp(t, backoff.Schedule{time.Hour}, refusing(func(*message.Message) bool { return true }),
			forHandlers(func(message.Subscriber) (message.Subscriber, error) { return by, nil }), func(c *relay.Config) {
				c.Policy.Rules = []retry.Rule{{Name: "bug", Then: retry.Discard(), If: func(retry.Record, error) bool {
					runtime.Goexit()
					return true
				}}}
			})
		a.AddHandler(a.router, "billing", "orders", "bills", produce, retry.Options{Concurrency: 1})
		a.run()
		for _, uuid := range []string{"1", "2"} {
			msg := orderOf(uuid)
			orders.send(msg)
			<-msg.Nacked()
		}
		a.close()
	})
}

// A normal stop leaves no message both here and on a tier.
func TestCloseWaitsUntilANackIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		orders := &scripted{}
		by := byTopic{"orders": orders, "retry.return.billing": {}}
		a := newApp(t, backoff.Schedule{time.Hour}, refusing(func(*message.Message) bool { return true }),
			forHandlers(func(message.Subscriber) (message.Subscriber, error) { return by, nil }))
		a.publisher.before = func(string, *message.Message) error {
			time.Sleep(2 * time.Second)
			return nil
		}
		a.AddHandler(a.router, "billing", "orders", "bills", produce)
		a.run()
		msg := orderOf("1")
		orders.send(msg)
		time.Sleep(time.Second)
		a.close()
		select {
		case <-msg.Acked():
		default:
			t.Error("the message is not settled")
		}
	})
}

func TestHandlerOfAConnectionProduces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second}, refusing(func(*message.Message) bool { return false }))
		bills, err := a.pubSub.Subscribe(t.Context(), "bills")
		require.NoError(t, err)
		names := make(chan string, 2)
		a.AddHandler(a.router, "billing", "orders", "bills", func(msg *message.Message) ([]*message.Message, error) {
			names <- message.SubscriberNameFromCtx(msg.Context()) + " " + message.PublisherNameFromCtx(msg.Context())
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				return nil, errDown
			}
			return produce(msg)
		})
		a.run()
		a.publish("1")
		bill := <-bills
		bill.Ack()
		assert.Equal(t, orderOf("1").Metadata, bill.Metadata, "without the failure record and without the delay")
		for range 2 {
			assert.Equal(t, "gochannel.GoChannel relay_test.probe", <-names)
		}
		a.close()
	})
}

func TestOptionsThatTheRelayDoesNotHaveAreRefused(t *testing.T) {
	for want, options := range map[string][]retry.Options{
		"Order.Key is set: only RabbitMQ has it":     {{Order: retry.Order{Key: func(*message.Message) string { return "" }}}},
		"CloseTimeout is 1m0s: only RabbitMQ has it": {{CloseTimeout: time.Minute}},
		"Prefetch is 1: only RabbitMQ has it":        {{Prefetch: 1}},
		"2 Options were given":                       {{}, {}},
		"Concurrency is -1":                          {{Concurrency: -1}},
		`Policy: TierGroup is "shop": only`:          {{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Second}, TierGroup: "shop"}}},
	} {
		t.Run(want, func(t *testing.T) {
			c := newApp(t, backoff.Schedule{time.Second})
			_, err := c.Subscriber("billing")
			require.NoError(t, err)
			_, err = c.Subscriber("billing", options...)
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, `subscriber "billing"`)
			require.NoError(t, c.Close())
		})
	}
	c := newApp(t, backoff.Schedule{time.Second})
	_, err := c.Subscriber("billing", retry.Options{Concurrency: 16})
	require.NoError(t, err)
	_, err = c.Subscriber("")
	require.ErrorContains(t, err, "the name is empty")
	require.NoError(t, c.Close())
	_, err = c.Subscriber("mailing")
	require.ErrorIs(t, err, retry.ErrClosed)
}

// noting records the topics that are subscribed.
type noting struct {
	message.Subscriber
	topics *[]string
}

func (n noting) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	*n.topics = append(*n.topics, topic)
	return n.Subscriber.Subscribe(ctx, topic)
}

// A nil router is refused with the name of the handler: the functions return no error.
func TestANilRouterIsRefused(t *testing.T) {
	c := newApp(t, backoff.Schedule{time.Second})
	const refused = `handler "billing": its router is nil: pass the router that message.NewRouter has returned`
	assert.PanicsWithValue(t, refused, func() { c.AddConsumerHandler(nil, "billing", "orders", ignore) })
	assert.PanicsWithValue(t, refused, func() { c.AddHandler(nil, "billing", "orders", "billed", message.PassthroughHandler) })
	require.NoError(t, c.Close())
}

// Run has the faults of every handler, whichever the router subscribes first, and nothing is consumed.
func TestFaultsOfAllHandlersOfAConnection(t *testing.T) {
	for range 10 { // the router has no order
		var topics []string
		c := newApp(t, backoff.Schedule{time.Second}, forHandlers(func(s message.Subscriber) (message.Subscriber, error) {
			return noting{s, &topics}, nil
		}))
		c.handle("billing", ignore)
		c.AddConsumerHandler(c.router, "mailing", "orders", ignore, retry.Options{Prefetch: 32, CloseTimeout: time.Minute})
		c.AddHandler(c.router, "archive", "orders", "archived", message.PassthroughHandler, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{1}}})
		c.AddConsumerHandler(c.router, "none", "", ignore, retry.Options{Concurrency: -1, CloseTimeout: -time.Second})
		c.AddConsumerHandler(c.router, "nil", "orders", nil)
		c.AddHandler(c.router, "nil too", "orders", "archived", nil)
		err := c.router.Run(t.Context())
		for _, want := range []string{
			`handler "nil": its function is nil`, `handler "nil too": its function is nil`,
			`handler "mailing": Prefetch is 32`, "\n" + `handler "mailing": CloseTimeout is 1m0s`, `handler "archive": Policy.Schedule: backoff: retry 1`,
		} {
			require.ErrorContains(t, err, want)
		}
		var ofNone []string
		for line := range strings.Lines(err.Error()) {
			if _, fault, is := strings.Cut(line, `handler "none": `); is {
				ofNone = append(ofNone, fault[:strings.Index(fault, " is ")])
			}
		}
		assert.Equal(t, []string{"Concurrency", "CloseTimeout", "its topic"}, ofNone, "each once, and all at once")
		other, err := c.Subscriber("other")
		require.NoError(t, err)
		_, err = other.Subscribe(t.Context(), "orders")
		require.ErrorContains(t, err, `handler "mailing": Prefetch is 32`)
		assert.Empty(t, topics)
		require.NoError(t, c.Close())
	}
}

// picky is a Publisher of a backend that refuses a topic.
type picky struct{ message.Publisher }

func (picky) CheckTopic(topic string) error { return fmt.Errorf("topic %q is too long", topic) }

// TestATopicIsRefusedWithTheOtherFaults, and by Subscribe where it is not known before.
func TestATopicIsRefusedWithTheOtherFaults(t *testing.T) {
	c := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) { c.Publisher = picky{c.Publisher} })
	own, err := c.Subscriber("own")
	require.NoError(t, err)
	_, err = own.Subscribe(t.Context(), "")
	require.EqualError(t, err, `handler "own": its topic is empty: set the name of the topic that the handler reads`)
	c.AddConsumerHandler(c.router, "billing", "orders", ignore, retry.Options{Concurrency: -1})
	err = c.router.Run(t.Context())
	require.ErrorContains(t, err, `handler "billing": Concurrency is -1`)
	require.ErrorContains(t, err, `handler "billing": topic "orders" is too long`)
	require.NoError(t, c.Close())
}

func TestInvalidConfigIsReportedAsAWhole(t *testing.T) {
	_, err := relay.Connect(relay.Config{Prefix: "a b", RetiredSchedule: backoff.Schedule{1}}, nil)
	for _, want := range []string{
		"invalid relay.Config: Publisher is nil", "Schedule: backoff: no retries", "RetiredSchedule: ", "NewSubscriber is nil",
		`Prefix is "a b": it must have at most 40 characters`,
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestFactoryOfSubscribers(t *testing.T) {
	var asked []relay.SubscriberParams
	a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
		stock := c.NewSubscriber
		c.NewSubscriber = func(p relay.SubscriberParams) (message.Subscriber, error) {
			asked = append(asked, p)
			return stock(p)
		}
	})
	_, err := a.Subscriber("mailing", retry.Options{Group: "mail", Concurrency: 3})
	require.NoError(t, err)
	_, err = a.Subscriber("billing")
	require.NoError(t, err)
	a.handle("archive", ignore)
	a.AddHandler(a.router, "forward", "orders", "forwarded", message.PassthroughHandler)
	assert.Equal(t, []relay.SubscriberParams{
		{Handler: "mailing", Group: "mail", Concurrency: 3}, {Handler: "billing", Concurrency: 16},
		{Handler: "archive", Topic: "orders", Concurrency: 16}, {Handler: "forward", Topic: "orders", Concurrency: 16},
	}, asked)
	require.NoError(t, a.Close())

	for want, made := range map[string]error{"NewSubscriber returned neither": nil, "the bank is down": errDown} {
		a := newApp(t, backoff.Schedule{time.Second},
			forHandlers(func(message.Subscriber) (message.Subscriber, error) { return nil, made }))
		_, err := a.Subscriber("mailing")
		require.ErrorContains(t, err, want)
		require.NoError(t, a.Close())
	}
}

// noted records its Close. It is a publisher or a subscriber.
type noted struct {
	message.Publisher
	message.Subscriber
	name  string
	order *[]string
}

func (n noted) Close() error {
	*n.order = append(*n.order, n.name)
	return errors.New(n.name + " is stuck")
}

// TestConnectionClosesWhatItMade: each once, and the publishers last.
func TestConnectionClosesWhatItMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		stuck := func(name string) func(message.Subscriber) (message.Subscriber, error) {
			return func(s message.Subscriber) (message.Subscriber, error) {
				return noted{Subscriber: s, name: name, order: &order}, nil
			}
		}
		c := newApp(t, backoff.Schedule{time.Second}, forTiers(stuck("tier")), forHandlers(stuck("handler")), func(c *relay.Config) {
			c.AppPublisher = noted{Publisher: c.AppPublisher, name: "app", order: &order}
			c.Publisher = noted{Publisher: c.Publisher, name: "copies", order: &order}
		})
		c.AddHandler(c.router, "billing", "orders", "bills", produce)
		c.run()
		require.NoError(t, c.router.Close())
		require.NoError(t, <-c.stopped)
		assert.Empty(t, order, "the router closes nothing that others use")
		err := c.Close()
		assert.Equal(t, []string{"tier", "handler", "app", "copies"}, order)
		for _, name := range order {
			assert.ErrorContains(t, err, name+" is stuck")
		}
		require.NoError(t, c.pubSub.Close())
	})
}

func TestPublisherOfBothIsClosedOnce(t *testing.T) {
	var order []string
	c := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
		c.Publisher, c.AppPublisher = noted{Publisher: c.AppPublisher, name: "both", order: &order}, nil
	})
	c.publish("1")
	require.NoError(t, c.Publisher().Close())
	assert.Empty(t, order)
	require.ErrorContains(t, c.Close(), "both is stuck")
	assert.Equal(t, []string{"both"}, order)
}

// TestHandlerWithoutTheMiddleware: gochannel delivers a nacked message again at once.
func TestHandlerWithoutTheMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newApp(t, backoff.Schedule{time.Second})
		subscriber, err := c.Subscriber("billing")
		require.NoError(t, err)
		var calls atomic.Int64
		c.router.AddConsumerHandler("billing", "orders", subscriber, func(*message.Message) error {
			calls.Add(1)
			return errDown
		})
		c.run()
		c.publish("1")
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 16, calls.Load(), 3, "10ms, 20ms, ... 640ms, and then once a second")
		warnings := 0
		for _, line := range c.logs.Captured()[watermill.ErrorLogLevel] {
			if strings.Contains(line.Msg, "no retry middleware") {
				warnings++
				assert.Equal(t, "billing.orders", line.Fields["handler_name"])
			}
		}
		assert.Equal(t, 1, warnings)
		c.close()
	})
}

func TestHealthOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier, handler := &scripted{}, &scripted{}
		c := newApp(t, backoff.Schedule{time.Second}, withTier(tier),
			forHandlers(func(message.Subscriber) (message.Subscriber, error) { return handler, nil }))
		require.NoError(t, c.Health().Ready())
		began := time.Now()
		c.handle("billing", ignore)
		c.router.AddConsumerHandler("stays", "nothing", c.pubSub, ignore)
		c.run()
		synctest.Wait()
		assert.Equal(t, []retry.SubscriptionHealth{
			{Name: "billing", Topic: "orders", Queue: "orders", Consuming: true, Since: began},
			{Name: "tier 1s", Topic: "retry.1s", Queue: "retry.1s", Consuming: true, Since: began},
		}, c.Health().Subscriptions)
		require.NoError(t, c.Health().Ready())

		tier.fail = func(int) error { return errDown }
		close(tier.cut)
		time.Sleep(time.Minute)
		require.ErrorContains(t, c.Health().Ready(), errDown.Error())
		tier.mu.Lock()
		tier.fail = nil
		tier.mu.Unlock()
		time.Sleep(time.Minute)
		require.NoError(t, c.Health().Ready())

		require.NoError(t, c.Pause("billing"))
		require.NoError(t, c.Health().Ready())
		close(handler.cut) // one of the two subscriptions ends: a fault, also of a paused handler
		synctest.Wait()
		require.ErrorContains(t, c.Health().Ready(), `handler "billing" does not consume "orders"`)
		c.close()
		synctest.Wait()
		assert.Len(t, c.Health().Subscriptions, 1, "the failed one")
	})
}

// The end of one of the two subscriptions ends the other one. Health names the first.
func TestHealthNamesTheChannelThatTheSubscriberHasClosed(t *testing.T) {
	for _, closed := range []string{"orders", "retry.return.billing"} {
		bubble(t, closed, func(t *testing.T) {
			by := byTopic{"orders": {}, "retry.return.billing": {}}
			a := newApp(t, backoff.Schedule{time.Second},
				forHandlers(func(message.Subscriber) (message.Subscriber, error) { return by, nil }))
			a.handle("billing", ignore)
			// Else the router closes itself, and can hold a lock: a bubble's time would stand still.
			a.router.AddConsumerHandler("stays", "nothing", a.pubSub, ignore)
			a.run()
			handled := orderOf("1")
			by[closed].send(handled)
			<-handled.Acked()
			synctest.Wait()
			close(by[closed].cut)
			synctest.Wait()
			require.ErrorContains(t, a.Health().Ready(), fmt.Sprintf("the subscriber closed the channel of %q", closed))
			a.close()
		})
	}
}

// byTopic has a subscriber for each topic.
type byTopic map[string]*scripted

func (b byTopic) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return b[topic].Subscribe(ctx, topic)
}

func (byTopic) Close() error { return nil }
