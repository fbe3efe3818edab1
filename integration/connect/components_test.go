package connect_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/fanin"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// The components add handlers by themselves: they get a Subscriber, and their routers the Middleware.

type billOrder struct{ Order string }

type orderBilled struct{ Order string }

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// failOnce returns a handler that fails at the first delivery of each order and counts the second.
func failOnce(s *shop, done *testapp.Ledger, name string) func(ctx context.Context, order string) error {
	return func(ctx context.Context, order string) error {
		if failures(cqrs.OriginalMessageFromCtx(ctx)) == 0 {
			return errDown
		}
		done.Add(name + " " + order)
		return nil
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	s := open(t)
	done := testapp.NewLedger()
	fail := failOnce(s, done, "bill")
	processor, err := cqrs.NewCommandProcessorWithConfig(s.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic(p.CommandName), nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.Subscriber(p.HandlerName)
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	handler, err := processor.AddHandler(cqrs.NewCommandHandler("billing", func(ctx context.Context, c *billOrder) error { return fail(ctx, c.Order) }))
	require.NoError(t, err)
	handler.AddMiddleware(s.Middleware)
	bus, err := cqrs.NewCommandBusWithConfig(s.Publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return s.topic(p.CommandName), nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	s.run()
	for _, id := range ids(10) {
		require.NoError(t, bus.Send(context.Background(), billOrder{Order: id}))
	}
	done.Wait(t, 10, soon)
	assert.Empty(t, done.Twice())
	assert.Equal(t, "billing", s.Health().Subscriptions[0].Name)
}

// TestEvents: each event handler is a group with a schedule of its own, and the middleware is that of the router.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := open(t, fanOut)
	s.router.AddMiddleware(s.Middleware)
	done, tiers := testapp.NewLedger(), testapp.NewLedger()
	schedules := map[string]backoff.Schedule{"shipping": {110 * time.Millisecond}, "mailing": {120 * time.Millisecond}, "counting": nil}
	s.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.Retried {
			tiers.Add(e.Handler + " " + e.Tier.String())
		}
	}))
	processor, err := cqrs.NewEventProcessorWithConfig(s.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic(p.EventName), nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			options := retry.Options{Group: p.HandlerName}
			if schedule := schedules[p.HandlerName]; schedule != nil {
				options.Policy = &retry.Policy{Schedule: schedule}
			}
			return s.Subscriber(p.HandlerName, options)
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	for name := range schedules {
		fail := failOnce(s, done, name)
		_, err := processor.AddHandler(cqrs.NewEventHandler(name, func(ctx context.Context, e *orderBilled) error { return fail(ctx, e.Order) }))
		require.NoError(t, err)
	}
	bus := eventBus(t, s, func(event string) string { return s.topic(event) })
	s.run()
	for _, id := range ids(10) {
		require.NoError(t, bus.Publish(context.Background(), orderBilled{Order: id}))
	}
	done.Wait(t, 30, soon)
	assert.Empty(t, done.Twice())
	// A hook runs after the confirm: the message may be back before.
	want := map[string]int{"shipping 110ms": 10, "mailing 120ms": 10, "counting 100ms": 10}
	eventually(t, func() bool { return assert.ObjectsAreEqual(want, tiers.Counts()) }, "each group uses its schedule: %v", tiers.Counts)
}

// TestEventGroups: AddHandlersGroup returns no handler, so the middleware is that of the router, for all groups.
func TestEventGroups(t *testing.T) {
	t.Parallel()
	s := open(t, fanOut)
	s.router.AddMiddleware(s.Middleware)
	done := testapp.NewLedger()
	processor, err := cqrs.NewEventGroupProcessorWithConfig(s.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.topic("events"), nil
		},
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.Subscriber(p.EventGroupName, retry.Options{Group: p.EventGroupName})
		},
		Marshaler: marshaler, AckOnUnknownEvent: true,
	})
	require.NoError(t, err)
	for _, group := range []string{"shipping", "mailing"} {
		fail := failOnce(s, done, group)
		require.NoError(t, processor.AddHandlersGroup(group,
			cqrs.NewGroupEventHandler(func(ctx context.Context, e *orderBilled) error { return fail(ctx, e.Order) }),
			cqrs.NewGroupEventHandler(func(ctx context.Context, c *billOrder) error { return fail(ctx, "bill "+c.Order) }),
		))
	}
	bus := eventBus(t, s, func(string) string { return s.topic("events") })
	s.run()
	for _, id := range ids(10) {
		require.NoError(t, bus.Publish(context.Background(), orderBilled{Order: id}))
		require.NoError(t, bus.Publish(context.Background(), billOrder{Order: id}))
	}
	done.Wait(t, 40, soon)
	assert.Empty(t, done.Twice())
}

func eventBus(t *testing.T, s *shop, topicOf func(event string) string) *cqrs.EventBus {
	t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(s.Publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return topicOf(p.EventName), nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	return bus
}

// TestRequeuer: it forwards parked messages. Those that it cannot publish wait on tiers.
func TestRequeuer(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.router.AddMiddleware(s.Middleware)
	parked, err := s.Subscriber("requeuer")
	require.NoError(t, err)
	var refused atomic.Int32
	_, err = requeuer.NewRequeuer(requeuer.Config{
		Subscriber: parked, SubscribeTopic: s.topic("parked"), Publisher: s.Publisher(), Router: s.router,
		GeneratePublishTopic: func(p requeuer.GeneratePublishTopicParams) (string, error) {
			if failures(p.Message) == 0 {
				refused.Add(1)
				return "", errDown
			}
			return s.topic("orders"), nil
		},
	}, s.log)
	require.NoError(t, err)
	done := testapp.NewLedger()
	s.handle("billing", "orders", func(msg *message.Message) error { done.Add(msg.UUID); return nil })
	s.run()
	s.publish("parked", ids(10)...)
	done.Wait(t, 10, soon)
	assert.Empty(t, done.Twice())
	assert.EqualValues(t, 10, refused.Load())
}

// TestFanIn: it has no middlewares. Messages that it cannot publish are nacked, and delivered again after a pause.
func TestFanIn(t *testing.T) {
	t.Parallel()
	s := open(t)
	all, err := s.Subscriber("fan-in", retry.Options{Concurrency: 4})
	require.NoError(t, err)
	topics := []string{s.topic("orders"), s.topic("returns")}
	component, err := fanin.NewFanIn(all, s.Publisher(), fanin.Config{SourceTopics: topics, TargetTopic: s.topic("all")}, s.log)
	require.NoError(t, err)
	start(t, component)
	s.publish("orders", "order 1", "order 2")
	s.publish("returns", "return 1", "return 2")
	eventually(t, func() bool { return s.log.Count("must run once first") > 0 }, "there is no queue for them yet")

	done := testapp.NewLedger()
	s.handle("billing", "all", func(msg *message.Message) error {
		if failures(msg) == 0 {
			return errDown
		}
		done.Add(msg.UUID)
		return nil
	})
	s.run()
	done.Wait(t, 4, soon)
	assert.Empty(t, done.Twice())
	assert.Equal(t, 1, s.log.Warnings("no retry middleware"), "for both topics of the handler")
}

// TestRouterWithSeveralGroups: one Middleware for a router whose handlers have several groups and schedules. Each message uses its
// own.
func TestRouterWithSeveralGroups(t *testing.T) {
	t.Parallel()
	s := open(t, fanOut)
	s.router.AddMiddleware(s.Middleware)
	done := testapp.NewLedger()
	for i, group := range []string{"a", "b", "c"} {
		subscriber, err := s.Subscriber(group, retry.Options{
			Group: group, Policy: &retry.Policy{Schedule: backoff.Constant(time.Duration(100+10*i)*time.Millisecond, i+1)},
		})
		require.NoError(t, err)
		s.router.AddConsumerHandler(group, s.topic("orders"), subscriber, func(msg *message.Message) error {
			done.Add(fmt.Sprint(group, " failures ", failures(msg)))
			return errDown
		})
	}
	s.run()
	s.publish("orders", "1")
	done.Wait(t, 2+3+4, soon)
	for i, group := range []string{"a", "b", "c"} {
		letter := testapp.Take(t, s.topic("orders")+"_"+group+".dead", 1)[0]
		assert.Equal(t, fmt.Sprint(i+2), letter.Headers[recordkey.Failures])
		assert.Equal(t, group, letter.Headers[recordkey.Handler])
	}
	assert.Empty(t, done.Twice())
}
