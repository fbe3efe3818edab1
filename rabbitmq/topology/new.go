package topology

import (
	"maps"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

const (
	// unlimited is a delivery limit that is none in practice: -1 means "no limit" on RabbitMQ 4 and "drop at the first
	// requeue" on 3.10.
	unlimited = int64(1_000_000)

	// DeliveryLimit is how often a protected work queue delivers a message before it dead-letters it: what RabbitMQ 4.0 does
	// by default, but there without a dead-letter exchange it drops the message.
	DeliveryLimit = 20
)

// New is what a work queue needs on the broker. The queue is given as the app itself would declare it. New is a pure function;
// what is wrong with its input, Validate of the topology tells, and every other method that returns an error.
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
			{Name: n.RetryExchange(), Kind: amqp091.ExchangeTopic, Durable: true},
			{Name: n.ReturnExchange(), Kind: amqp091.ExchangeTopic, Durable: true, Arguments: amqp091.Table{"alternate-exchange": n.Orphans()}},
			{Name: n.Orphans(), Kind: amqp091.ExchangeFanout, Durable: true},
		},
		WorkQueue: work,
		Queues: []Queue{
			// Its arguments depend on no option, so that apps with different ones share it.
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
	t.Bindings = append(t.Bindings, Binding{Exchange: n.ReturnExchange(), Queue: work.Name, Key: naming.ReturnKey(work.Name)})
	return t
}

// tierArguments: at-least-once dead-lettering is the quorum queue's alone, and needs reject-publish.
func tierArguments(n naming.Prefix, tier backoff.Tier, queueType QueueType) amqp091.Table {
	arguments := amqp091.Table{
		argType:                    string(queueType),
		amqp091.QueueMessageTTLArg: time.Duration(tier).Milliseconds(),
		argDLX:                     n.ReturnExchange(),
	}
	if queueType == Quorum {
		arguments[argDLStrategy] = "at-least-once"
		arguments[argOverflow] = amqp091.QueueOverflowRejectPublish
	}
	return arguments
}

// restArguments are those of a queue where messages stay until somebody takes them.
func restArguments(queueType QueueType) amqp091.Table {
	arguments := amqp091.Table{argType: string(queueType)}
	if queueType == Quorum {
		arguments[argLimit] = unlimited
	}
	return arguments
}
