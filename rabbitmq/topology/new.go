package topology

import (
	"maps"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/argument"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

const (
	// unlimited is a delivery limit that no message reaches. -1 means "no limit" on RabbitMQ 4, but "drop at the first requeue"
	// on 3.10.
	unlimited = int64(1_000_000)

	// DeliveryLimit is how many times a protected work queue redelivers a message before it dead-letters it. It is the default of
	// RabbitMQ 4.0, which drops the message if the queue has no dead-letter exchange.
	DeliveryLimit = 20
)

// New returns what a work queue needs on the broker. work is the queue as the app itself would declare it; its Arguments are
// copied. New does not connect. If config or work is invalid, Validate and every other method of the topology that returns an error
// report it.
func New(config Config, work Queue) Topology {
	work.Arguments = maps.Clone(work.Arguments)
	if err := config.Validate(); err != nil {
		return Topology{WorkQueue: work, fault: err}
	}
	config = config.withDefaults()
	n, tiers := naming.Prefix(config.Prefix), config.Schedule.Tiers()
	if config.WorkQueueMode == Protect {
		work = protect(work, n)
	}
	dead := naming.DeadQueue(work.Name)
	t := Topology{
		Exchanges: []Exchange{
			{Name: n.RetryExchange(), Kind: amqp091.ExchangeDirect, Durable: true},
			{Name: n.ReturnExchange(), Kind: amqp091.ExchangeDirect, Durable: true, Arguments: alternate(n.AnyReturnExchange())},
			{Name: n.AnyReturnExchange(), Kind: amqp091.ExchangeTopic, Durable: true, Arguments: alternate(n.Orphans())},
			{Name: n.Orphans(), Kind: amqp091.ExchangeFanout, Durable: true},
		},
		WorkQueue: work,
		Queues: []Queue{
			// Its arguments depend on no option: apps with different options share it.
			{Name: n.Orphans(), Durable: true, Arguments: restArguments(Quorum)},
			{Name: dead, Durable: true, Arguments: restArguments(config.QueueType)},
		},
		Bindings: []Binding{
			{Exchange: n.Orphans(), Queue: n.Orphans()},
			{Exchange: n.RetryExchange(), Queue: dead, Key: naming.DeadKey(work.Name)},
		},
		fault: n.ValidateQueue(work.Name, tiers),
	}
	for _, tier := range tiers {
		queue := Queue{Name: n.TierQueue(work.Name, tier), Durable: true, Arguments: tierArguments(n, tier, config.QueueType)}
		t.Queues = append(t.Queues, queue)
		t.Bindings = append(t.Bindings, Binding{Exchange: n.RetryExchange(), Queue: queue.Name, Key: naming.RetryKey(work.Name, tier)})
	}
	t.Bindings = append(t.Bindings, Binding{Exchange: n.AnyReturnExchange(), Queue: work.Name, Key: naming.AnyReturnKey(work.Name)})
	for _, tier := range tiers {
		t.Bindings = append(t.Bindings, Binding{Exchange: n.ReturnExchange(), Queue: work.Name, Key: naming.RetryKey(work.Name, tier)})
	}
	return t
}

func alternate(exchange string) amqp091.Table {
	return amqp091.Table{argument.AlternateExchange: exchange}
}

// tierArguments returns the arguments of a tier queue. Only quorum queues have at-least-once dead-lettering, which needs
// reject-publish.
func tierArguments(n naming.Prefix, tier backoff.Tier, queueType QueueType) amqp091.Table {
	arguments := amqp091.Table{
		argument.QueueType:          string(queueType),
		argument.MessageTTL:         time.Duration(tier).Milliseconds(),
		argument.DeadLetterExchange: n.ReturnExchange(),
	}
	if queueType == Quorum {
		arguments[argument.DeadLetterStrategy] = argument.AtLeastOnce
		arguments[argument.Overflow] = argument.RejectPublish
	}
	return arguments
}

// restArguments returns the arguments of a queue in which messages stay until a consumer takes them.
func restArguments(queueType QueueType) amqp091.Table {
	arguments := amqp091.Table{argument.QueueType: string(queueType)}
	if queueType == Quorum {
		arguments[argument.DeliveryLimit] = unlimited
	}
	return arguments
}
