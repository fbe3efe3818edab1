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

type orderBilled struct{ Order string }

type orderShipped struct{ Order string }

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

// virtually runs a test with an app in virtual time.
func virtually(t *testing.T, test func(t *testing.T, app *retrytest.App)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, retrytest.New(t, schedule)) })
}

// command adds a handler of the command, behind the middleware.
func command(t *testing.T, app *retrytest.App, acksErrors bool, handle func(context.Context, *billOrder) error) {
	t.Helper()
	processor, err := cqrs.NewCommandProcessorWithConfig(app.Router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return p.CommandName, nil },
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return app.Subscriber(p.HandlerName)
		},
		Marshaler: marshaler, AckCommandHandlingErrors: acksErrors,
	})
	require.NoError(t, err)
	handler, err := processor.AddHandler(cqrs.NewCommandHandler("billing", handle))
	require.NoError(t, err)
	handler.AddMiddleware(app.Middleware)
}

// events adds handlers of events on one topic, each a consumer group, behind the middleware.
func events(t *testing.T, app *retrytest.App, acksUnknown bool, handlers ...cqrs.EventHandler) {
	t.Helper()
	processor, err := cqrs.NewEventProcessorWithConfig(app.Router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return app.Subscriber(p.HandlerName, retry.Options{Group: p.HandlerName})
		},
		Marshaler: marshaler, AckOnUnknownEvent: acksUnknown,
	})
	require.NoError(t, err)
	for _, h := range handlers {
		handler, err := processor.AddHandler(h)
		require.NoError(t, err)
		handler.AddMiddleware(app.Middleware)
	}
}

// twice returns a function that fails with the error on its first two calls.
func twice(calls *int, failure error) func() error {
	return func() error {
		if *calls++; *calls <= 2 {
			return failure
		}
		return nil
	}
}

func retriedTwice(s *retrytest.Story) { s.RetriedAt(time.Second, 6*time.Second).Processed() }

func diesAtTheEnd(s *retrytest.Story) { s.Waited(schedule...).DeadLettered(retry.DeadReasonExhausted) }

func TestCommands(t *testing.T) {
	for name, row := range map[string]struct {
		failure    error // of the first two calls
		payload    string
		acksErrors bool
		want       func(*retrytest.Story)
	}{
		"retried":   {failure: errDown, want: retriedTwice},
		"permanent": {failure: backoff.Permanent(errDown), want: func(s *retrytest.Story) { s.DeadLettered(retry.DeadReasonPermanent) }},
		"AckCommandHandlingErrors hides failures": {failure: errDown, acksErrors: true,
			want: func(s *retrytest.Story) { s.NeverRetried().Processed() }},
		"unreadable: it waits through the whole schedule": {payload: "{", want: diesAtTheEnd},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, app *retrytest.App) {
				calls := 0
				fails := twice(&calls, row.failure)
				command(t, app, row.acksErrors, func(_ context.Context, command *billOrder) error {
					assert.Equal(t, theCommand, *command)
					return fails()
				})
				msg := marshal(t, theCommand)
				if row.payload != "" {
					msg.Payload = []byte(row.payload)
				}
				row.want(app.Send("billOrder", msg))
			})
		})
	}
}

// Each event handler is a consumer group: a failure of one does not affect the other.
func TestEventIsRetriedInItsGroupOnly(t *testing.T) {
	virtually(t, func(t *testing.T, app *retrytest.App) {
		calls, mails := 0, 0
		fails := twice(&calls, errDown)
		events(t, app, false,
			cqrs.NewEventHandler("shipping", func(context.Context, *orderBilled) error { return fails() }),
			cqrs.NewEventHandler("mailing", func(context.Context, *orderBilled) error { mails++; return nil }))
		story := app.Send("events", marshal(t, orderBilled(theCommand)))
		retriedTwice(story.Handler("shipping"))
		story.Handler("mailing").Processed()
		assert.Equal(t, 1, mails)
	})
}

// Several events on one topic: without AckOnUnknownEvent each handler fails on the events of the others.
func TestUnknownEventIsAFailure(t *testing.T) {
	for acks, want := range map[bool]func(*retrytest.Story){false: diesAtTheEnd, true: func(s *retrytest.Story) { s.Processed() }} {
		virtually(t, func(t *testing.T, app *retrytest.App) {
			events(t, app, acks, cqrs.NewEventHandler("shipping", func(context.Context, *orderBilled) error { return nil }))
			want(app.Send("events", marshal(t, orderShipped(theCommand))))
		})
	}
}

// The handlers of an event group share one message. A retry calls all of them again.
func TestEventGroupRepeatsHandlersThatSucceeded(t *testing.T) {
	virtually(t, func(t *testing.T, app *retrytest.App) {
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
		fails := twice(&calls, errDown)
		require.NoError(t, processor.AddHandlersGroup("shipping",
			cqrs.NewGroupEventHandler(func(context.Context, *orderBilled) error { first++; return nil }),
			cqrs.NewGroupEventHandler(func(context.Context, *orderBilled) error { return fails() }),
		))
		retriedTwice(app.Send("events", marshal(t, orderBilled(theCommand))))
		assert.Equal(t, 3, first)
	})
}

// What docs/consumer-groups.md shows: an event that is published at each try of a command has one ID, so an inbox behind
// it handles it once, and the events of other commands have others.
func TestEventsOfACommandKeepTheirIDs(t *testing.T) {
	virtually(t, func(t *testing.T, app *retrytest.App) {
		bus, err := cqrs.NewEventBusWithConfig(app.Publisher(), cqrs.EventBusConfig{
			GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
			OnPublish:            sameID,
			Marshaler:            marshaler,
		})
		require.NoError(t, err)
		calls := 0
		fails := twice(&calls, errDown)
		command(t, app, false, func(ctx context.Context, command *billOrder) error {
			return errors.Join(bus.Publish(ctx, orderBilled(*command)), fails())
		})
		retriedTwice(app.Send("billOrder", marshal(t, theCommand)))
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
