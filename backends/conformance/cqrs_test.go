package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

type billOrder struct{ Order string }

type orderBilled struct{ Order string }

// commandsAndEvents: a program with a command, whose handler publishes an event, two handlers of the event, each with a
// consumer group of its own, and an event group. It is Watermill's components/cqrs over the Connection. Each handler
// fails once for each order, and each gets its own retries only: their records have its own failure. One order is a
// dead letter of each handler of the event.
func commandsAndEvents(t *testing.T, f *fixture) {
	const orders = 10
	f.score.passes(t, "cqrs")
	app := f.app(300 * time.Millisecond)
	commands, events := f.topic(0), f.topic(1)
	groups := []string{"shipping" + f.name, "mailing" + f.name, "auditing" + f.name}
	a := f.connect(app, []string{commands, events}, groups)
	a.router.AddMiddleware(a.Middleware)
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	commandBus, err := cqrs.NewCommandBusWithConfig(a.Publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return commands, nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	eventBus, err := cqrs.NewEventBusWithConfig(a.Publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return events, nil },
		Marshaler:            marshaler,
	})
	require.NoError(t, err)
	calls := &ordersOf{handled: map[string]bool{}}

	commandProcessor, err := cqrs.NewCommandProcessorWithConfig(a.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return commands, nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.Subscriber(p.HandlerName)
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	bill := func(ctx context.Context, c *billOrder) error {
		if err := calls.failOnce(ctx, "billing", commands, c.Order); err != nil {
			return err
		}
		return eventBus.Publish(ctx, orderBilled(*c))
	}
	_, err = commandProcessor.AddHandler(cqrs.NewCommandHandler("billing", bill))
	require.NoError(t, err)

	eventProcessor, err := cqrs.NewEventProcessorWithConfig(a.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return events, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.Subscriber(p.HandlerName, retry.Options{Group: p.HandlerName})
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	for _, name := range groups[:2] {
		_, err := eventProcessor.AddHandler(cqrs.NewEventHandler(name, func(ctx context.Context, e *orderBilled) error {
			return calls.failOnce(ctx, name, events, e.Order)
		}))
		require.NoError(t, err)
	}
	eventGroups, err := cqrs.NewEventGroupProcessorWithConfig(a.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) {
			return events, nil
		},
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return a.Subscriber(p.EventGroupName, retry.Options{Group: p.EventGroupName})
		},
		Marshaler: marshaler,
	})
	require.NoError(t, err)
	require.NoError(t, eventGroups.AddHandlersGroup(groups[2],
		cqrs.NewGroupEventHandler(func(ctx context.Context, e *orderBilled) error {
			return calls.failOnce(ctx, groups[2], events, e.Order)
		})))

	var named []string // the handlers in the records
	var dead []func(int) map[string]*letters.Letter
	for _, name := range groups {
		group := app
		group.Group = name
		if f.Expect.NoGroups {
			name += "." + events // of a Subscriber
		}
		named = append(named, name)
		dead = append(dead, f.deadMessages(group, name, events))
	}
	a.run()
	for _, order := range append(ids(orders), stolen) {
		require.NoError(t, commandBus.Send(noContext, billOrder{Order: order}))
	}
	f.eventually("every handler has handled every order", func() bool {
		handled, wrong := calls.count()
		assert.Empty(t, wrong, "records of other failures")
		return handled == (len(groups)+1)*orders+1
	})
	for i, name := range groups {
		for _, letter := range dead[i](1) {
			var event orderBilled
			require.NoError(t, json.Unmarshal(letter.Payload, &event))
			record := letter.Record
			assert.Equal(t, []any{stolen, 2, retry.DeadReasonPermanent, reason(name, stolen), events, named[i]}, []any{
				event.Order, record.Failures, record.DeadReason, record.Reason, record.Topic, record.Handler,
			})
		}
	}
}

const stolen = "stolen" // an order

func reason(handler, order string) string {
	return fmt.Sprintf("%s cannot handle order %s yet", handler, order)
}

// ordersOf are the orders that each handler has handled.
type ordersOf struct {
	mu      sync.Mutex
	handled map[string]bool // by handler and order
	wrong   []string        // failure records that are not those of the handler's own failure
}

// failOnce fails where the message in the context has not failed before, and checks its failure record else.
func (o *ordersOf) failOnce(ctx context.Context, handler, topic, order string) error {
	record, _ := retry.ReadRecord(cqrs.OriginalMessageFromCtx(ctx).Metadata)
	failed := errors.New(reason(handler, order))
	if record.Failures == 0 {
		return failed
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if record.Failures != 1 || record.Reason != failed.Error() || record.Topic != topic {
		o.wrong = append(o.wrong, fmt.Sprintf("%s, order %s: %+v", handler, order, record))
	}
	if order == stolen && handler != "billing" {
		return backoff.Permanent(failed)
	}
	o.handled[handler+" "+order] = true
	return nil
}

func (o *ordersOf) count() (handled int, wrong []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.handled), slices.Clone(o.wrong)
}
