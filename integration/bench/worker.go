package main

import (
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
)

// measureWorker measures one handler of which 5% of the messages fail once. The queue is filled first.
func measureWorker(b *bench) error {
	options := func(uri string) config.Config { return configOf(uri, backoff.Constant(tier, 3)) }
	stock := library("library, watermill-amqp's subscriber", handling{}, options)
	return contest{
		title:  "One handler, 5% of the messages fail once",
		rounds: 1,
		sides:  []side{waitingInHandler, stock},
		load:   load{messages: b.Size(2_000, 60), failEvery: 20},
		ratios: []ratio{{claim: "worker_watermill_amqp", ours: stock.name, theirs: waitingInHandler.name}},
	}.measure(b)
}

// waitingInHandler is Watermill's Retry, which waits in the handler.
var waitingInHandler = side{
	name: "Watermill's Retry, watermill-amqp's subscriber",
	declare: func(uri string) error {
		return with(uri, func(channel *amqp091.Channel) error { return declareQuorum(channel, work, nil) })
	},
	consume: func(uri string, a *app) (func(), error) {
		c := amqp.NewDurableQueueConfig(uri)
		c.TopologyBuilder = nothing{}
		subscriber, err := amqp.NewSubscriber(c, watermill.NopLogger{}) // the router closes it
		if err != nil {
			return nil, err
		}
		router := message.NewDefaultRouter(watermill.NopLogger{})
		retry := watermillmw.Retry{MaxRetries: 3, InitialInterval: tier, Multiplier: 1}
		handle := func(msg *message.Message) error { return a.handle(msg.UUID) }
		router.AddConsumerHandler("billing", work, subscriber, handle).AddMiddleware(retry.Middleware)
		stop, err := broker.Run(router)
		return func() { _ = stop() }, err
	},
}
