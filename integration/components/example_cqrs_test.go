package components

import (
	"context"
	"log"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
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
