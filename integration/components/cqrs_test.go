package components

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"

	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// The tests of this file check that docs/consumer-groups.md describes what Watermill's processors do.

type billOrder struct{ Order string }

var (
	errDown    = errors.New("no answer from the bank")
	marshaler  = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	schedule   = backoff.Schedule{time.Second, 5 * time.Second}
	theCommand = billOrder{Order: "1"}
)

func marshal(t *testing.T, v any) *message.Message {
	t.Helper()
	msg, err := marshaler.Marshal(v)
	require.NoError(t, err)
	return msg
}

func commandProcessor(t *testing.T, app *retrytest.App, change ...func(*cqrs.CommandProcessorConfig)) *cqrs.CommandProcessor {
	t.Helper()
	config := cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return p.CommandName, nil },
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return app.Subscriber(p.HandlerName)
		},
		Marshaler: marshaler,
	}
	for _, c := range change {
		c(&config)
	}
	processor, err := cqrs.NewCommandProcessorWithConfig(app.Router, config)
	require.NoError(t, err)
	return processor
}

// twice returns a function that fails on its first two calls.
func twice(calls *int) func() error {
	return func() error {
		if *calls++; *calls <= 2 {
			return errDown
		}
		return nil
	}
}

func TestCommands(t *testing.T) {
	acks := func(c *cqrs.CommandProcessorConfig) { c.AckCommandHandlingErrors = true }
	type story = *retrytest.Story
	for name, row := range map[string]struct {
		failure error // of the first two calls
		payload string
		change  func(*cqrs.CommandProcessorConfig)
		want    func(story)
	}{
		"retried":   {failure: errDown, want: func(s story) { s.RetriedAt(time.Second, 6*time.Second).Processed() }},
		"permanent": {failure: backoff.Permanent(errDown), want: func(s story) { s.DeadLettered(retry.DeadReasonPermanent) }},
		"AckCommandHandlingErrors hides failures": {failure: errDown, change: acks, want: func(s story) { s.NeverRetried().Processed() }},
		"unreadable: it waits through the whole schedule": {payload: "{", want: func(s story) {
			s.Waited(schedule...).DeadLettered(retry.DeadReasonExhausted)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				app := retrytest.New(t, schedule)
				calls := 0
				var change []func(*cqrs.CommandProcessorConfig)
				if row.change != nil {
					change = append(change, row.change)
				}
				handler, err := commandProcessor(t, app, change...).AddHandler(
					cqrs.NewCommandHandler("billing", func(_ context.Context, command *billOrder) error {
						assert.Equal(t, "1", command.Order)
						if calls++; calls <= 2 {
							return row.failure
						}
						return nil
					}))
				require.NoError(t, err)
				handler.AddMiddleware(app.Middleware)
				msg := marshal(t, theCommand)
				if row.payload != "" {
					msg.Payload = []byte(row.payload)
				}
				row.want(app.Send("billOrder", msg))
			})
		})
	}
}

func eventProcessor(t *testing.T, app *retrytest.App, change ...func(*cqrs.EventProcessorConfig)) *cqrs.EventProcessor {
	t.Helper()
	config := cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return app.Subscriber(p.HandlerName, retry.Options{Group: p.HandlerName})
		},
		Marshaler: marshaler,
	}
	for _, c := range change {
		c(&config)
	}
	processor, err := cqrs.NewEventProcessorWithConfig(app.Router, config)
	require.NoError(t, err)
	return processor
}

type orderBilled struct{ Order string }

type orderShipped struct{ Order string }

// Each event handler is a consumer group: a failure of one does not affect the other.
func TestEventIsRetriedInItsGroupOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, schedule)
		calls, mails := 0, 0
		fails := twice(&calls)
		processor := eventProcessor(t, app)
		for _, h := range []cqrs.EventHandler{
			cqrs.NewEventHandler("shipping", func(context.Context, *orderBilled) error { return fails() }),
			cqrs.NewEventHandler("mailing", func(context.Context, *orderBilled) error { mails++; return nil }),
		} {
			handler, err := processor.AddHandler(h)
			require.NoError(t, err)
			handler.AddMiddleware(app.Middleware)
		}
		story := app.Send("events", marshal(t, orderBilled{Order: "1"}))
		story.Handler("shipping").RetriedAt(time.Second, 6*time.Second).Processed()
		story.Handler("mailing").Processed()
		assert.Equal(t, 1, mails)
	})
}

// Several events on one topic: without AckOnUnknownEvent each handler fails on the events of the others.
func TestUnknownEventIsAFailure(t *testing.T) {
	for _, ack := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			app := retrytest.New(t, schedule)
			handler, err := eventProcessor(t, app, func(c *cqrs.EventProcessorConfig) { c.AckOnUnknownEvent = ack }).AddHandler(
				cqrs.NewEventHandler("shipping", func(context.Context, *orderBilled) error { return nil }))
			require.NoError(t, err)
			handler.AddMiddleware(app.Middleware)
			story := app.Send("events", marshal(t, orderShipped{Order: "1"}))
			if ack {
				story.Processed()
			} else {
				story.Waited(schedule...).DeadLettered(retry.DeadReasonExhausted)
			}
		})
	}
}

// The handlers of an event group share one message. A retry calls all of them again.
func TestEventGroupRepeatsHandlersThatSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, schedule)
		processor, err := cqrs.NewEventGroupProcessorWithConfig(app.Router, cqrs.EventGroupProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
			SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return app.Subscriber(p.EventGroupName, retry.Options{Group: p.EventGroupName})
			},
			Marshaler: marshaler,
		})
		require.NoError(t, err)
		app.Router.AddMiddleware(app.Middleware) // AddHandlersGroup returns no handler
		first, calls := 0, 0
		fails := twice(&calls)
		require.NoError(t, processor.AddHandlersGroup("shipping",
			cqrs.NewGroupEventHandler(func(context.Context, *orderBilled) error { first++; return nil }),
			cqrs.NewGroupEventHandler(func(context.Context, *orderBilled) error { return fails() }),
		))
		app.Send("events", marshal(t, orderBilled{Order: "1"})).RetriedAt(time.Second, 6*time.Second).Processed()
		assert.Equal(t, 3, first)
	})
}

// What docs/consumer-groups.md shows: an event that is published at each try of a command has one ID, so an inbox behind
// it handles it once, and the events of other commands have others.
func TestEventsOfACommandKeepTheirIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, schedule)
		events, err := cqrs.NewEventBusWithConfig(app.Publisher(), cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
			OnPublish:            sameID,
			Marshaler:            marshaler,
		})
		require.NoError(t, err)
		calls := 0
		fails := twice(&calls)
		handler, err := commandProcessor(t, app).AddHandler(
			cqrs.NewCommandHandler("billing", func(ctx context.Context, command *billOrder) error {
				return errors.Join(events.Publish(ctx, orderBilled(*command)), fails())
			}))
		require.NoError(t, err)
		handler.AddMiddleware(app.Middleware)
		app.Send("billOrder", marshal(t, theCommand)).RetriedAt(time.Second, 6*time.Second).Processed()
		app.Send("billOrder", marshal(t, theCommand)).Processed()
		var ids []string
		for _, event := range app.Produced("events") {
			ids = append(ids, event.UUID)
		}
		require.Len(t, ids, 4)
		assert.Equal(t, []string{ids[0], ids[0], ids[0]}, ids[:3])
		assert.NotEqual(t, ids[0], ids[3])
	})
}

// What docs/dead-letters.md shows: the test of a letter calls a handler of components/cqrs with its command.
func TestLetterOfACommand(t *testing.T) {
	got := ""
	billing := cqrs.NewCommandHandler("billing", func(ctx context.Context, command *billOrder) error {
		got = cqrs.OriginalMessageFromCtx(ctx).UUID + " " + command.Order
		return nil
	})
	retrytest.Replay(t, "testdata/order-10.json", letterOf(billing, marshaler))
	assert.Equal(t, "order-10 10", got)
}
