package components

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/inbox"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

const uri = "amqp://guest:guest@localhost:5672/"

var logger = watermill.NopLogger{}

func bill(context.Context, *billOrder) error { return nil }

func ship(context.Context, *orderBilled) error { return nil }

func mail(context.Context, *orderBilled) error { return nil }

// Commands: one queue for each command, the middleware on each handler.
func Example_commands() {
	ctx := context.Background()
	router := message.NewDefaultRouter(logger)

	rabbit, err := config.Connect(config.Config{AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: schedule}}, logger)
	check(err)
	defer rabbit.Close() // after router.Run has returned

	processor, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
		SubscriberConstructor: func(p cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return rabbit.Subscriber(p.HandlerName)
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	handler, err := processor.AddHandler(cqrs.NewCommandHandler("billing", bill))
	check(err)
	handler.AddMiddleware(rabbit.Middleware)

	bus, err := cqrs.NewCommandBusWithConfig(rabbit.Publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	go func() {
		<-router.Running() // the queues exist
		check(bus.Send(ctx, billOrder{Order: "1"}))
	}()
	check(router.Run(ctx))
}

// Events: each handler is a consumer group.
func Example_events() {
	ctx := context.Background()
	router := message.NewDefaultRouter(logger)

	rabbit, err := config.Connect(config.Config{AMQP: amqp.NewDurablePubSubConfig(uri, nil), Policy: retry.Policy{Schedule: schedule}}, logger)
	check(err)
	defer rabbit.Close() // after router.Run has returned

	router.AddMiddleware(rabbit.Middleware)
	processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return "events." + p.EventName, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return rabbit.Subscriber(p.HandlerName, retry.Options{Group: p.HandlerName})
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	check(processor.AddHandlers(cqrs.NewEventHandler("shipping", ship), cqrs.NewEventHandler("mailing", mail)))
	check(router.Run(ctx))
}

// Event groups: AddHandlersGroup returns no handler, so the middleware is added to the router.
func Example_eventGroups() {
	router := message.NewDefaultRouter(logger)
	rabbit, err := config.Connect(config.Config{AMQP: amqp.NewDurablePubSubConfig(uri, nil), Policy: retry.Policy{Schedule: schedule}}, logger)
	check(err)
	defer rabbit.Close() // after router.Run has returned

	router.AddMiddleware(rabbit.Middleware)
	processor, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return rabbit.Subscriber(p.EventGroupName, retry.Options{Group: p.EventGroupName})
		},
		AckOnUnknownEvent: true,
		Marshaler:         cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	check(processor.AddHandlersGroup("shipping", cqrs.NewGroupEventHandler(ship)))
	check(processor.AddHandlersGroup("mailing", cqrs.NewGroupEventHandler(mail)))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// sameID gives an event an ID that is the same at each try of the command: it comes from the command and the event. The
// event must have nothing that differs at each try, such as time.Now(), and two events of one command must differ.
func sameID(p cqrs.OnEventSendParams) error {
	command := cqrs.OriginalMessageFromCtx(p.Message.Context())
	id := sha256.Sum256([]byte(command.UUID + " " + p.EventName + " " + string(p.Message.Payload)))
	p.Message.UUID = hex.EncodeToString(id[:16])
	return nil
}

// Events of a command whose handler has an inbox, by an event bus. What Connect has returned, and the inbox, are the
// app's.
func Example_eventsOfACommandWithAnInbox() {
	add := func(rabbit retry.Connection, router *message.Router, processor *cqrs.CommandProcessor, box *inbox.Inbox) {
		events, err := cqrs.NewEventBusWithConfig(rabbit.Publisher(), cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
				return "events." + p.EventName, nil
			},
			OnPublish: sameID,
			Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
		})
		check(err)
		bill := func(ctx context.Context, command *billOrder) error {
			_, err := inbox.Tx(ctx).ExecContext(ctx, "UPDATE orders SET billed = true WHERE id = $1", command.Order)
			if err != nil {
				return err
			}
			return events.Publish(ctx, orderBilled{Order: command.Order})
		}
		handler, err := processor.AddHandler(cqrs.NewCommandHandler("billing", bill))
		check(err)
		handler.AddMiddleware(rabbit.Middleware, box.Middleware)
	}
	_ = add
}

// letterOf is a handler of a letter's test that calls a handler of components/cqrs, as its processor does.
func letterOf(handler cqrs.CommandHandler, marshaler cqrs.CommandEventMarshaler) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		command := handler.NewCommand() // of a cqrs.EventHandler: NewEvent
		if err := marshaler.Unmarshal(msg, command); err != nil {
			return err
		}
		return handler.Handle(cqrs.CtxWithOriginalMessage(msg.Context(), msg), command)
	}
}

// A test that wmretry dead show --go-test has written, for a handler of components/cqrs.
func Example_letterOfACommand() {
	test := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			billing := cqrs.NewCommandHandler("billing", bill)
			handler := letterOf(billing, cqrs.JSONMarshaler{GenerateName: cqrs.StructName})
			retrytest.Replay(t, "testdata/order-10.json", handler)
		})
	}
	_ = test
}
