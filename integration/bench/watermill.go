package main

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

// watermillByHand is watermill-amqp's subscriber and publisher on one connection, with a counter in the metadata. Each
// of its handlers has one message in flight, and fetches so many.
func watermillByHand() side {
	s := handPipelined // its queues
	s.name = "Watermill by hand, 16 handlers, prefetch 16"
	s.consume = func(uri string, a *app) (func(), error) {
		config := amqp.NewDurableQueueConfig(uri)
		config.Marshaler = ownHeaders{}
		config.TopologyBuilder = nothing{} // the queues exist, with arguments that watermill-amqp does not declare
		config.Publish.ConfirmDelivery = true
		config.Publish.ChannelPoolSize = workers
		config.Consume.Qos.PrefetchCount = workers
		connection, err := amqp.NewConnection(config.Connection, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		publisher, err := amqp.NewPublisherWithConnection(config, watermill.NopLogger{}, connection)
		subscriber, fault := amqp.NewSubscriberWithConnection(config, watermill.NopLogger{}, connection)
		if err = errors.Join(err, fault); err != nil {
			return nil, errors.Join(err, connection.Close())
		}
		router := message.NewDefaultRouter(watermill.NopLogger{})
		handle := func(msg *message.Message) error {
			if a.handle(msg.UUID) == nil {
				return nil
			}
			failures, _ := strconv.Atoi(msg.Metadata.Get(triesHeader))
			queue := work + ".waiting"
			if failures+1 == tries {
				queue = work + deadSuffix
			}
			again := msg.Copy()
			again.Metadata.Set(triesHeader, strconv.Itoa(failures+1))
			return publisher.Publish(queue, again)
		}
		for i := range workers {
			router.AddConsumerHandler(fmt.Sprint(i), work, subscriber, handle)
		}
		stop, err := broker.Run(router)
		return func() { _ = errors.Join(stop(), publisher.Close(), connection.Close()) }, err
	}
	return s
}

// ownHeaders leaves out the headers of the broker, such as x-death: watermill-amqp's marshaler refuses those that are
// not strings, and the others would be published again.
type ownHeaders struct{ amqp.DefaultMarshaler }

func (m ownHeaders) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	maps.DeleteFunc(d.Headers, func(name string, _ any) bool { return strings.HasPrefix(name, "x-") })
	return m.DefaultMarshaler.Unmarshal(d)
}
