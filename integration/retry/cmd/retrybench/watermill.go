package main

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// watermillByHand is what a user of Watermill writes by hand: the failed message is published again by watermill-amqp's
// publisher, with a counter in its metadata. watermill-amqp has one message in flight per handler.
func watermillByHand(name string, handlers, pool int) side {
	return side{
		name: name, queues: byHand, declare: declareQueues,
		consume: func(uri, work string, a *app) (func(), error) {
			config := amqp.NewDurableQueueConfig(uri)
			config.Marshaler = stringHeaders{}
			config.TopologyBuilder = nothing{} // the queues exist, with arguments that watermill-amqp does not declare
			config.Publish.ConfirmDelivery = true
			config.Publish.ChannelPoolSize = pool
			publisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
			if err != nil {
				return nil, err
			}
			subscriber, err := amqp.NewSubscriber(config, watermill.NopLogger{})
			if err != nil {
				return nil, err
			}
			router := message.NewDefaultRouter(watermill.NopLogger{})
			for i := range handlers {
				router.AddConsumerHandler(fmt.Sprint(i), work, subscriber, func(msg *message.Message) error {
					if a.handle(msg.UUID) == nil {
						return nil
					}
					failures, _ := strconv.Atoi(msg.Metadata.Get(triesHeader))
					failures++
					queue := waiting(work)
					if failures == tries {
						queue = work + deadSuffix
					}
					again := msg.Copy()
					again.Metadata.Set(triesHeader, strconv.Itoa(failures))
					return publisher.Publish(queue, again)
				})
			}
			stop, err := run(router)
			return func() { stop(); _ = publisher.Close() }, err
		},
	}
}

// run runs a router, and returns when it handles messages.
func run(router *message.Router) (stop func(), err error) {
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
		return func() { _ = router.Close(); <-stopped }, nil
	case err := <-stopped:
		return func() {}, err
	}
}

// stringHeaders leaves out headers that are not strings, such as x-death: watermill-amqp's marshaler refuses them.
type stringHeaders struct{ amqp.DefaultMarshaler }

func (m stringHeaders) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	maps.DeleteFunc(d.Headers, func(_ string, value any) bool { _, text := value.(string); return !text })
	return m.DefaultMarshaler.Unmarshal(d)
}

// nothing declares nothing.
type nothing struct{}

func (nothing) BuildTopology(*amqp091.Channel, string, string, amqp.Config, watermill.LoggerAdapter) error {
	return nil
}

func (nothing) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { return nil }
