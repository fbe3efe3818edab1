package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// connected is a router with a Connection on a gochannel.
type connected struct {
	retry.Connection
	t         *testing.T
	pubSub    *gochannel.GoChannel
	publisher *probe // of copies
	router    *message.Router
	stopped   chan error

	mu    sync.Mutex
	asked []relay.HandlerSubscriberParams
}

func connect(t *testing.T, change ...func(*relay.ConnectConfig)) *connected {
	t.Helper()
	c := &connected{t: t, pubSub: gochannel.NewGoChannel(gochannel.Config{}, nil), router: message.NewDefaultRouter(nil), stopped: make(chan error, 1)}
	c.publisher = &probe{Publisher: c.pubSub}
	config := relay.ConnectConfig{
		Config: relay.Config{
			Publisher: c.publisher, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
			NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return c.pubSub, nil },
		},
		AppPublisher: c.pubSub,
		NewHandlerSubscriber: func(p relay.HandlerSubscriberParams) (message.Subscriber, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.asked = append(c.asked, p)
			return c.pubSub, nil
		},
	}
	for _, ch := range change {
		ch(&config)
	}
	var err error
	c.Connection, err = relay.Connect(config, nil)
	require.NoError(t, err)
	return c
}

func (c *connected) run() {
	go func() { c.stopped <- c.router.Run(context.Background()) }()
	<-c.router.Running()
}

func (c *connected) close() {
	synctest.Wait()
	require.NoError(c.t, c.router.Close())
	require.NoError(c.t, <-c.stopped)
	require.NoError(c.t, c.Close())
	require.NoError(c.t, c.Close(), "a second Close is harmless")
}

func (c *connected) publish(topic, uuid string) {
	require.NoError(c.t, c.Publisher().Publish(topic, orderOf(uuid)))
}

// failingOnce fails for each message without a failure record, and records when it was called.
func failingOnce(c *calls, done chan<- *message.Message) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		c.add(msg)
		if _, retried := retry.ReadRecord(msg.Metadata); !retried {
			return errDown
		}
		done <- msg
		return nil
	}
}

func TestHandlersOfAConnectionWithSchedulesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t)
		done := make(chan *message.Message, 2)
		var first, own, later calls
		c.AddConsumerHandler(c.router, "billing", "orders", failingOnce(&first, done))
		c.AddConsumerHandler(c.router, "mailing", "mails", failingOnce(&own, done), retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Minute}}})
		c.run()
		for topic, made := range map[string]*calls{"orders": &first, "mails": &own} {
			c.publish(topic, "1")
			<-done
			want := map[string]time.Duration{"orders": time.Second, "mails": time.Minute}[topic]
			assert.GreaterOrEqual(t, made.waits()[0], want)
			assert.LessOrEqual(t, made.waits()[0], want+10*time.Millisecond)
		}

		// The tiers run. The tier of a handler that is added now starts at once.
		c.AddConsumerHandler(c.router, "printing", "prints", failingOnce(&later, done), retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Hour}}})
		require.NoError(t, c.router.RunHandlers(t.Context()))
		c.publish("prints", "1")
		<-done
		assert.GreaterOrEqual(t, later.waits()[0], time.Hour)
		assert.NotEmpty(t, c.publisher.to("retry.1h"))
		c.close()
	})
}

// TestSubscriberOfSeveralTopics: each topic has a return topic of its own, whatever the order of the subscriptions.
func TestSubscriberOfSeveralTopics(t *testing.T) {
	for _, topics := range [][]string{{"orders", "mails"}, {"mails", "orders"}} {
		synctest.Test(t, func(t *testing.T) {
			c := connect(t)
			subscriber, err := c.Subscriber("all")
			require.NoError(t, err)
			c.router.AddMiddleware(c.Middleware)
			done := make(chan *message.Message, 1)
			var made calls
			for _, topic := range topics {
				c.router.AddConsumerHandler("of "+topic, topic, subscriber, failingOnce(&made, done))
			}
			c.run()
			for _, topic := range topics {
				c.publish(topic, "1")
				back := <-done
				assert.Equal(t, topic, message.SubscribeTopicFromCtx(back.Context()), "the handler of the topic")
				record, _ := retry.ReadRecord(back.Metadata)
				assert.Equal(t, topic, record.Topic)
				assert.Equal(t, "all."+topic, record.Handler)
				assert.Len(t, c.publisher.to("retry.return.all."+topic), 1)
			}
			c.close()
			assert.Len(t, made.got, 4, "no other handler gets a retry")
		})
	}
}

func TestHandlerOfAConnectionProduces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := &closing{}
		c := connect(t, func(config *relay.ConnectConfig) {
			app.Publisher, config.AppPublisher = config.AppPublisher, app
		})
		bills, err := c.pubSub.Subscribe(t.Context(), "bills")
		require.NoError(t, err)
		c.AddHandler(c.router, "billing", "orders", "bills", func(msg *message.Message) ([]*message.Message, error) {
			if _, retried := retry.ReadRecord(msg.Metadata); !retried {
				return nil, errDown
			}
			return []*message.Message{msg.Copy()}, nil
		})
		c.run()
		c.publish("orders", "1")
		bill := <-bills
		bill.Ack()
		assert.Equal(t, orderOf("1").Metadata, bill.Metadata)
		require.NoError(t, c.router.Close())
		assert.Zero(t, app.closed, "the router does not close it")
		c.close()
		assert.Equal(t, 1, app.closed)
	})
}

func TestOptionsThatTheRelayDoesNotHaveAreRefused(t *testing.T) {
	for want, options := range map[string][]retry.Options{
		"Concurrency is 16: this Pub/Sub delivers one message at a time": {{Concurrency: 16}},
		"gochannel has no consumer groups: there every handler would":    {{Concurrency: 16}},
		"OrderKey is set: only RabbitMQ has it":                          {{OrderKey: func(*message.Message) string { return "" }}},
		"CloseTimeout is 1m0s: only RabbitMQ has it":                     {{CloseTimeout: time.Minute}},
		"2 Options were given":                                           {{}, {}},
		"retry 1: delay 1ns is too short":                                {{Policy: &retry.Policy{Schedule: backoff.Schedule{1}}}},
		"MaxHold is -1ns":                                                {{Policy: &retry.Policy{MaxHold: -1}}},
		`in use with group "", and now with group "mail"`:                {{Group: "mail"}},
	} {
		t.Run(want, func(t *testing.T) {
			c := connect(t)
			_, err := c.Subscriber("billing")
			require.NoError(t, err)
			_, err = c.Subscriber("billing", options...)
			require.ErrorContains(t, err, want)
			c.AddConsumerHandler(c.router, "billing", "orders", ignore, options...)
			err = c.router.Run(t.Context())
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, `handler "billing"`)
			require.NoError(t, c.Close())
		})
	}
	c := connect(t)
	_, err := c.Subscriber("billing", retry.Options{Concurrency: 1})
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

// Run has the faults of every handler, whichever the router subscribes first, and nothing is consumed.
func TestFaultsOfAllHandlersOfAConnection(t *testing.T) {
	for range 10 { // the router has no order
		var topics []string
		c := connect(t, func(config *relay.ConnectConfig) {
			made := config.NewHandlerSubscriber
			config.NewHandlerSubscriber = func(p relay.HandlerSubscriberParams) (message.Subscriber, error) {
				stock, err := made(p)
				return noting{stock, &topics}, err
			}
		})
		c.AddConsumerHandler(c.router, "billing", "orders", ignore)
		c.AddConsumerHandler(c.router, "mailing", "orders", ignore, retry.Options{Concurrency: 16, CloseTimeout: time.Minute})
		c.AddHandler(c.router, "archive", "orders", "archived", message.PassthroughHandler, retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{1}}})
		c.AddConsumerHandler(c.router, "nil", "orders", nil)
		c.AddHandler(c.router, "nil too", "orders", "archived", nil)
		err := c.router.Run(t.Context())
		for _, want := range []string{
			`handler "nil": its function is nil`, `handler "nil too": its function is nil`,
			`handler "mailing": Concurrency is 16`, "\n" + `handler "mailing": CloseTimeout is 1m0s`, `handler "archive": Policy: Schedule: backoff: retry 1`,
		} {
			require.ErrorContains(t, err, want)
		}
		other, err := c.Subscriber("other")
		require.NoError(t, err)
		_, err = other.Subscribe(t.Context(), "orders")
		require.ErrorContains(t, err, `handler "mailing": Concurrency is 16`)
		assert.Empty(t, topics)
		require.NoError(t, c.Close())
	}
}

func TestTierNamedLikeAReturnTopicIsRefused(t *testing.T) {
	c := connect(t, func(config *relay.ConnectConfig) {
		config.GenerateTopic = func(p relay.TopicParams) (string, error) {
			if p.Kind == relay.TierTopic && p.Tier == backoff.Tier(time.Hour) {
				return "return billing", nil
			}
			return []string{"tier " + p.Tier.String(), "return " + p.Handler, "dead " + p.Handler}[p.Kind], nil
		}
	})
	c.AddConsumerHandler(c.router, "billing", "orders", ignore)
	_, err := c.Subscriber("mailing", retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Hour}}})
	require.ErrorContains(t, err, `GenerateTopic returned "return billing" for both handler "billing" and tier 1h; names must be unique`)
	require.NoError(t, c.Close())
}

func TestInvalidConnectConfig(t *testing.T) {
	_, err := relay.Connect(relay.ConnectConfig{}, nil)
	for _, want := range []string{
		"invalid relay.ConnectConfig: ", "Publisher is nil", "Schedule: backoff: no retries", "NewSubscriber is nil", "NewHandlerSubscriber is nil",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestFactoryOfHandlerSubscribers(t *testing.T) {
	c := connect(t)
	_, err := c.Subscriber("mailing", retry.Options{Group: "mail"})
	require.NoError(t, err)
	assert.Equal(t, []relay.HandlerSubscriberParams{{Name: "mailing", Group: "mail"}}, c.asked)
	require.NoError(t, c.Close())

	for _, made := range []error{errDown, nil} {
		c := connect(t, func(config *relay.ConnectConfig) {
			config.NewHandlerSubscriber = func(relay.HandlerSubscriberParams) (message.Subscriber, error) { return nil, made }
		})
		_, err := c.Subscriber("mailing")
		if made != nil {
			require.ErrorIs(t, err, errDown)
		} else {
			require.ErrorContains(t, err, "NewHandlerSubscriber returned neither")
		}
		require.NoError(t, c.Close())
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
		c := connect(t, func(config *relay.ConnectConfig) {
			pubSub := config.AppPublisher.(*gochannel.GoChannel)
			config.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) {
				return noted{Subscriber: pubSub, name: "tier", order: &order}, nil
			}
			config.NewHandlerSubscriber = func(relay.HandlerSubscriberParams) (message.Subscriber, error) {
				return noted{Subscriber: pubSub, name: "handler", order: &order}, nil
			}
			config.AppPublisher = noted{Publisher: pubSub, name: "app", order: &order}
			config.Publisher = noted{Publisher: pubSub, name: "copies", order: &order}
		})
		c.AddConsumerHandler(c.router, "billing", "orders", ignore)
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
	both := &closing{}
	c := connect(t, func(config *relay.ConnectConfig) {
		both.Publisher = config.AppPublisher
		config.Publisher, config.AppPublisher = both, nil
	})
	require.NoError(t, c.Publisher().Publish("orders", orderOf("1")))
	require.NoError(t, c.Publisher().Close())
	assert.Zero(t, both.closed)
	require.NoError(t, c.Close())
	assert.Equal(t, 1, both.closed)
}

// incomparable cannot be compared, although its type can.
type incomparable struct {
	message.Publisher
	any any
}

func (incomparable) Close() error { return nil }

func TestPublisherThatCannotBeCompared(t *testing.T) {
	c := connect(t, func(config *relay.ConnectConfig) {
		config.Publisher = incomparable{config.AppPublisher, []int{1}}
		config.AppPublisher = config.Publisher
	})
	assert.NotPanics(t, func() { require.NoError(t, c.Close()) })
}

// TestHandlerWithoutTheMiddleware: gochannel delivers a nacked message again at once.
func TestHandlerWithoutTheMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := watermill.NewCaptureLogger()
		c := connect(t)
		withLogs, err := relay.Connect(relay.ConnectConfig{
			Config: relay.Config{
				Publisher: c.publisher, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}}, Prefix: "other",
				NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return c.pubSub, nil },
			},
			AppPublisher:         c.pubSub,
			NewHandlerSubscriber: func(relay.HandlerSubscriberParams) (message.Subscriber, error) { return c.pubSub, nil },
		}, logs)
		require.NoError(t, err)
		subscriber, err := withLogs.Subscriber("billing")
		require.NoError(t, err)
		var calls atomic.Int64
		c.router.AddConsumerHandler("billing", "orders", subscriber, func(*message.Message) error {
			calls.Add(1)
			return errDown
		})
		c.run()
		c.publish("orders", "1")
		time.Sleep(10 * time.Second)
		assert.InDelta(t, 16, calls.Load(), 3, "10ms, 20ms, ... 640ms, and then once a second")
		warnings := 0
		for _, line := range logs.Captured()[watermill.InfoLogLevel] {
			if strings.Contains(line.Msg, "no retry middleware") {
				warnings++
				assert.Equal(t, "billing.orders", line.Fields["handler_name"])
			}
		}
		assert.Equal(t, 1, warnings)
		require.NoError(t, withLogs.Close())
		c.close()
	})
}

func TestHealthOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier, handler := &scripted{}, &scripted{}
		c := connect(t, func(config *relay.ConnectConfig) {
			config.NewSubscriber = func(relay.SubscriberParams) (message.Subscriber, error) { return tier, nil }
			config.NewHandlerSubscriber = func(relay.HandlerSubscriberParams) (message.Subscriber, error) { return handler, nil }
		})
		require.NoError(t, c.Health().Ready())
		began := time.Now()
		c.AddConsumerHandler(c.router, "billing", "orders", ignore)
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
		require.ErrorIs(t, c.Health().Ready(), errDown)
		tier.mu.Lock()
		tier.fail = nil
		tier.mu.Unlock()
		time.Sleep(time.Minute)
		require.NoError(t, c.Health().Ready())

		close(handler.cut) // one of the two subscriptions ends
		synctest.Wait()
		require.ErrorContains(t, c.Health().Ready(), `handler "billing" does not consume "orders"`)
		c.close()
		synctest.Wait()
		assert.Len(t, c.Health().Subscriptions, 1, "the failed one")
	})
}

// TestReturnTopicsThatTheBackendDelays: a copy goes to the return topic at once, with the time until which the backend keeps it.
func TestReturnTopicsThatTheBackendDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, func(config *relay.ConnectConfig) { config.NewSubscriber, config.DelayedReturns = nil, true })
		c.publisher.Publisher = delaying{c.pubSub}
		done := make(chan *message.Message, 1)
		var made calls
		c.AddConsumerHandler(c.router, "billing", "orders", failingOnce(&made, done), retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Minute}}})
		c.run()
		c.publish("orders", "1")
		<-done
		assert.GreaterOrEqual(t, made.waits()[0], time.Minute)
		assert.LessOrEqual(t, made.waits()[0], time.Minute+10*time.Millisecond)
		assert.Len(t, c.publisher.all, 1)
		assert.Len(t, c.publisher.to("retry.return.billing"), 1)
		c.close()
	})
}

// delaying publishes when the time in the metadata has come.
type delaying struct{ message.Publisher }

func (d delaying) Publish(topic string, messages ...*message.Message) error {
	until, err := time.Parse(time.RFC3339Nano, messages[0].Metadata.Get(delay.DelayedUntilKey))
	if err != nil {
		return err
	}
	time.AfterFunc(time.Until(until), func() { _ = d.Publisher.Publish(topic, messages...) })
	return nil
}
