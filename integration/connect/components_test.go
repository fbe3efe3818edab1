package connect_test

import (
	"context"
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
	"github.com/tieredretry/watermill-retry/retry"
)

// The components add handlers by themselves: they get a Subscriber, and their routers the Middleware.

type billOrder struct{ Order string }

type orderBilled struct{ Order string }

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// failOnce returns a handler that fails at the first delivery of each order and counts the second.
func failOnce(s *testapp.App, done *testapp.Ledger, name string) func(ctx context.Context, order string) error {
	return func(ctx context.Context, order string) error {
		if testapp.Failures(cqrs.OriginalMessageFromCtx(ctx)) == 0 {
			return errDown
		}
		done.Add(name + " " + order)
		return nil
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	done := testapp.NewLedger()
	fail := failOnce(s, done, "bill")
	processor, err := cqrs.NewCommandProcessorWithConfig(s.Router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.Queue(p.CommandName), nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return s.Subscriber(p.HandlerName)
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	handler, err := processor.AddHandler(cqrs.NewCommandHandler("billing",
		func(ctx context.Context, c *billOrder) error { return fail(ctx, c.Order) }))
	require.NoError(t, err)
	handler.AddMiddleware(s.Middleware)
	bus, err := cqrs.NewCommandBusWithConfig(s.Publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string,
			error) {
			return s.Queue(p.CommandName), nil
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	s.Run()
	for _, id := range testapp.IDs(10) {
		require.NoError(t, bus.Send(context.Background(), billOrder{Order: id}))
	}
	done.Wait(t, 10, soon)
	assert.Empty(t, done.Twice())
	assert.Equal(t, "billing", s.Health().Subscriptions[0].Name)
}

// TestEvents: each event handler is a group with a schedule of its own, and the middleware is that of the router.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, testapp.FanOut)
	s.Router.AddMiddleware(s.Middleware)
	done, tiers := testapp.NewLedger(), testapp.NewLedger()
	schedules := map[string]backoff.Schedule{"shipping": {110 * time.Millisecond}, "mailing": {120 * time.Millisecond},
		"counting": nil}
	s.Observe(eventtest.OnEvent(func(e retry.Event) {
		if e.Outcome == retry.Retried {
			tiers.Add(e.Handler + " " + e.Tier.String())
		}
	}))
	processor, err := cqrs.NewEventProcessorWithConfig(s.Router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.Queue(p.EventName), nil
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
		_, err := processor.AddHandler(cqrs.NewEventHandler(name,
			func(ctx context.Context, e *orderBilled) error { return fail(ctx, e.Order) }))
		require.NoError(t, err)
	}
	bus := eventBus(t, s, func(event string) string { return s.Queue(event) })
	s.Run()
	for _, id := range testapp.IDs(10) {
		require.NoError(t, bus.Publish(context.Background(), orderBilled{Order: id}))
	}
	done.Wait(t, 30, soon)
	assert.Empty(t, done.Twice())
	// A hook runs after the confirm: the message may be back before.
	want := map[string]int{"shipping 110ms": 10, "mailing 120ms": 10, "counting 100ms": 10}
	testapp.Eventually(t, func() bool { return assert.ObjectsAreEqual(want, tiers.Counts()) },
		"each group uses its schedule: %v", tiers.Counts)
}

// TestEventGroups: AddHandlersGroup returns no handler, so the middleware is that of the router, for all groups.
func TestEventGroups(t *testing.T) {
	t.Parallel()
	s := testapp.New(t, testapp.FanOut)
	s.Router.AddMiddleware(s.Middleware)
	done := testapp.NewLedger()
	processor, err := cqrs.NewEventGroupProcessorWithConfig(s.Router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return s.Queue("events"), nil
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
	bus := eventBus(t, s, func(string) string { return s.Queue("events") })
	s.Run()
	for _, id := range testapp.IDs(10) {
		require.NoError(t, bus.Publish(context.Background(), orderBilled{Order: id}))
		require.NoError(t, bus.Publish(context.Background(), billOrder{Order: id}))
	}
	done.Wait(t, 40, soon)
	assert.Empty(t, done.Twice())
}

func eventBus(t *testing.T, s *testapp.App, topicOf func(event string) string) *cqrs.EventBus {
	t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(s.Publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
			return topicOf(p.EventName),
				nil
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	return bus
}

// TestRequeuer: it forwards parked messages. Those that it cannot publish wait on tiers.
func TestRequeuer(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	s.Router.AddMiddleware(s.Middleware)
	parked, err := s.Subscriber("requeuer")
	require.NoError(t, err)
	var refused atomic.Int32
	_, err = requeuer.NewRequeuer(requeuer.Config{
		Subscriber: parked, SubscribeTopic: s.Queue("parked"), Publisher: s.Publisher(), Router: s.Router,
		GeneratePublishTopic: func(p requeuer.GeneratePublishTopicParams) (string, error) {
			if testapp.Failures(p.Message) == 0 {
				refused.Add(1)
				return "", errDown
			}
			return s.Queue("orders"), nil
		},
	}, s.Log)
	require.NoError(t, err)
	done := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"),
		done.Handle)
	s.Run()
	s.Publish(s.Queue("parked"), testapp.IDs(10)...)
	done.Wait(t, 10, soon)
	assert.Empty(t, done.Twice())
	assert.EqualValues(t, 10, refused.Load())
}

// TestFanIn: it has no middlewares. Messages that it cannot publish are nacked, and delivered again after a pause.
func TestFanIn(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	all, err := s.Subscriber("fan-in", retry.Options{Concurrency: 4})
	require.NoError(t, err)
	topics := []string{s.Queue("orders"), s.Queue("returns")}
	component, err := fanin.NewFanIn(all, s.Publisher(), fanin.Config{SourceTopics: topics, TargetTopic: s.Queue("all")},
		s.Log)
	require.NoError(t, err)
	t.Cleanup(testapp.Start(t, component))
	s.Publish(s.Queue("orders"), "order 1", "order 2")
	s.Publish(s.Queue("returns"), "return 1", "return 2")
	testapp.Eventually(t, func() bool { return s.Log.Count("must run once first") > 0 }, "there is no queue for them yet")

	done := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("all"), func(msg *message.Message) error {
		if testapp.Failures(msg) == 0 {
			return errDown
		}
		done.Add(msg.UUID)
		return nil
	})
	s.Run()
	done.Wait(t, 4, soon)
	assert.Empty(t, done.Twice())
	assert.Equal(t, 1, s.Log.Warnings("no retry middleware"), "for both topics of the handler")
}
