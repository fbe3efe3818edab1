package components

import (
	"context"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

const uri = "amqp://guest:guest@localhost:5672/"

var logger = watermill.NopLogger{}

func bill(context.Context, *billOrder) error { return nil }

func ship(context.Context, *orderBilled) error { return nil }

func mail(context.Context, *orderBilled) error { return nil }

// retries contains what the handlers of one AMQP configuration need.
type retries struct {
	subscriber message.Subscriber
	middleware message.HandlerMiddleware
	close      func() error // after the router has closed
}

func connect(app amqp.Config) retries {
	rabbit, err := config.NewBuilder(config.BuilderConfig{AMQP: app, Schedule: backoff.Exponential(time.Second, 5, 4)})
	check(err)
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), logger)
	check(err)
	failures, err := rabbit.NewPublisher(logger)
	check(err)
	retry, err := retrymw.NewTieredRetry(rabbit.TieredRetryConfig(failures), logger)
	check(err)
	return retries{subscriber, retry.Middleware, failures.Close}
}

// Commands: one queue for each command, the middleware on each handler.
func Example_commands() {
	ctx := context.Background()
	router := message.NewDefaultRouter(logger)

	commands := connect(amqp.NewDurableQueueConfig(uri))
	processor, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return "commands." + p.CommandName, nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return commands.subscriber, nil
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	handler, err := processor.AddHandler(cqrs.NewCommandHandler("billing", bill))
	check(err)
	handler.AddMiddleware(commands.middleware)
	check(router.Run(ctx))
	check(commands.close()) // after the router has closed
}

// Events: each handler is a consumer group, with its own queues, builder and middleware.
func Example_events() {
	router := message.NewDefaultRouter(logger)

	groups := map[string]retries{}
	for _, name := range []string{"shipping", "mailing"} {
		groups[name] = connect(amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(name)))
	}
	processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) {
			return "events." + p.EventName, nil
		},
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return groups[p.HandlerName].subscriber, nil
		},
		Marshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	for _, h := range []cqrs.EventHandler{cqrs.NewEventHandler("shipping", ship), cqrs.NewEventHandler("mailing", mail)} {
		handler, err := processor.AddHandler(h)
		check(err)
		handler.AddMiddleware(groups[h.HandlerName()].middleware)
	}
}

// Event groups: AddHandlersGroup returns no handler, so each group has its own router, and the middleware is added to the router.
func Example_eventGroups() {
	router := message.NewDefaultRouter(logger)

	shipping := connect(amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix("shipping")))
	router.AddMiddleware(shipping.middleware)
	processor, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return shipping.subscriber, nil
		},
		AckOnUnknownEvent: true,
		Marshaler:         cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	})
	check(err)
	check(processor.AddHandlersGroup("shipping", cqrs.NewGroupEventHandler(ship)))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
