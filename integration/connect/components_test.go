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

type orderBilled struct{ Order string }

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

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
		_, err := processor.AddHandler(cqrs.NewEventHandler(name, func(ctx context.Context, e *orderBilled) error {
			if testapp.Failures(cqrs.OriginalMessageFromCtx(ctx)) == 0 {
				return errDown
			}
			done.Add(name + " " + e.Order)
			return nil
		}))
		require.NoError(t, err)
	}
	bus, err := cqrs.NewEventBusWithConfig(s.Publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return s.Queue(p.EventName), nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
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
