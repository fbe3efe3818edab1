package topology

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
)

// unlimited is a delivery limit that no message reaches. -1 means "no limit" on RabbitMQ 4, but "drop at the first
// requeue" on 3.10.
const unlimited = int64(1_000_000)

// New returns what a work queue needs on the broker. work is the queue as the app itself would declare it. All
// Arguments are copied. New does not connect. If config or work is invalid, Validate and every other method of the
// topology that returns an error report it.
func New(config Config, work Queue) Topology {
	work.Arguments = maps.Clone(work.Arguments)
	if err := config.Validate(); err != nil {
		return Topology{WorkQueue: work, config: config, fault: err}
	}
	config = config.withDefaults()
	config.Tiers = slices.Compact(slices.Sorted(slices.Values(config.Tiers))) // the same tiers make equal topologies
	config.TierArguments = tierKeys.declared(config.TierArguments)
	config.DeadLetterArguments = deadLetterKeys.declared(config.DeadLetterArguments)
	n := naming.Prefix(config.Prefix)
	if config.Partitions > 0 {
		work = single(work)
	}
	if config.WorkQueueMode == Protect {
		work = protect(work, n)
	}
	dead := naming.DeadQueue(work.Name)
	t := Topology{
		Exchanges: []Exchange{
			{Name: n.RetryExchange(), Kind: amqp091.ExchangeDirect, Durable: true},
			{Name: n.ReturnExchange(), Kind: amqp091.ExchangeDirect, Durable: true,
				Arguments: alternate(n.AnyReturnExchange())},
			{Name: n.AnyReturnExchange(), Kind: amqp091.ExchangeTopic, Durable: true,
				Arguments: alternate(n.Orphans())},
			{Name: n.Orphans(), Kind: amqp091.ExchangeFanout, Durable: true},
		},
		WorkQueue: work,
		Queues: []Queue{
			// Its arguments depend on no option: apps with different options share it.
			{Name: n.Orphans(), Durable: true, Arguments: restArguments(Quorum)},
			{Name: dead, Durable: true, Arguments: config.deadLetterArguments()},
		},
		Bindings: []Binding{
			{Exchange: n.Orphans(), Queue: n.Orphans()},
			{Exchange: n.RetryExchange(), Queue: dead, Key: naming.DeadKey(work.Name)},
		},
		config: config,
		fault:  n.ValidateQueue(work.Name, cmp.Or(config.TierGroup, work.Name), config.Tiers),
	}
	switch config.TierGroup {
	case "":
		t.addTiers(n)
	case work.Name:
		t.fault = errors.Join(t.fault, fmt.Errorf("TierGroup %q has the name of the work queue: the tiers of both "+
			"would have the same names; give the group another name", work.Name))
	default:
		t.addGroup(n)
	}
	if config.Partitions > 0 {
		t.addPartitions(n)
	}
	return t
}

// addTiers adds the tiers of the work queue alone. They have exact keys, which cost the broker less than patterns.
func (t *Topology) addTiers(n naming.Prefix) {
	work := t.WorkQueue.Name
	for _, tier := range t.config.Tiers {
		queue := Queue{Name: n.TierQueue(work, tier), Durable: true,
			Arguments: t.config.tierArguments(n.ReturnExchange(), tier)}
		t.Queues = append(t.Queues, queue)
		t.Bindings = append(t.Bindings,
			Binding{Exchange: n.RetryExchange(), Queue: queue.Name, Key: naming.RetryKey(work, tier)})
	}
	t.Bindings = append(t.Bindings,
		Binding{Exchange: n.AnyReturnExchange(), Queue: work, Key: naming.AnyReturnKey(work)})
	for _, tier := range t.config.Tiers {
		t.Bindings = append(t.Bindings,
			Binding{Exchange: n.ReturnExchange(), Queue: work, Key: naming.RetryKey(work, tier)})
	}
}

// addGroup adds the tiers of a group. Its exchanges make every routing key lead to one tier queue only, also while work
// queues move to another group or to tiers of their own, and a further work queue needs no binding to the tiers.
// Messages come back through the inbox if it is bound, else through the alternate exchange, and never both ways. The
// binding of a member keeps the group: see Store.Prune of rabbitmq/deadletter.
func (t *Topology) addGroup(n naming.Prefix) {
	work, group := t.WorkQueue.Name, t.config.TierGroup
	in, out := n.GroupExchange(group), n.GroupReturnExchange(group)
	t.Exchanges = append([]Exchange{
		{Name: in, Kind: amqp091.ExchangeTopic, Durable: true},
		{Name: out, Kind: amqp091.ExchangeTopic, Durable: true, Arguments: alternate(n.AnyReturnExchange())},
	}, t.Exchanges...)
	for _, tier := range t.config.Tiers {
		queue := Queue{Name: n.TierQueue(group, tier), Durable: true, Arguments: t.config.tierArguments(out, tier)}
		t.Queues = append(t.Queues, queue)
		t.Bindings = append(t.Bindings, Binding{Exchange: in, Queue: queue.Name, Key: naming.TierKeys(tier)})
	}
	t.Bindings = append(t.Bindings,
		Binding{Exchange: n.AnyReturnExchange(), Queue: work, Key: naming.AnyReturnKey(work)})
	t.Bindings = append(t.Bindings, Binding{Exchange: out, Queue: work, Key: naming.MemberKey(work)})
	if !refusesOrLeaves(t.WorkQueue) {
		return
	}
	inbox := Queue{Name: n.InboxQueue(work), Durable: true, Arguments: tierArguments(n.ReturnExchange(), 0, Quorum)}
	inbox.Arguments[queuearg.DeadLetterRoutingKey] = naming.InboxKey(work)
	for _, key := range inboxKeys {
		if value, set := t.config.TierArguments[key]; set {
			inbox.Arguments[key] = value
		}
	}
	t.Queues = append(t.Queues, inbox)
	t.Bindings = append(t.Bindings,
		Binding{Exchange: n.ReturnExchange(), Queue: work, Key: naming.InboxKey(work)},
		Binding{Exchange: out, Queue: inbox.Name, Key: naming.AnyReturnKey(work)},
	)
}

// refusesOrLeaves reports whether a work queue may not take a message that comes back to it: a classic queue is away
// while its node is down, and one with a length limit can be full.
func refusesOrLeaves(work Queue) bool {
	return work.Arguments[queuearg.QueueType] != string(Quorum) ||
		hasAny(work.Arguments, queuearg.MaxLength, queuearg.MaxLengthBytes)
}

func alternate(exchange string) amqp091.Table {
	return amqp091.Table{queuearg.AlternateExchange: exchange}
}

// tierArguments returns the arguments of a tier. Those of the configuration may replace the leader locator. A classic
// queue drops the oldest message at a length limit, unless it refuses the newest.
func (c Config) tierArguments(to string, tier backoff.Tier) amqp091.Table {
	arguments := tierArguments(to, time.Duration(tier), c.QueueType)
	maps.Copy(arguments, c.TierArguments)
	if hasAny(arguments, queuearg.MaxLength, queuearg.MaxLengthBytes) {
		arguments[queuearg.Overflow] = queuearg.RejectPublish
	}
	return arguments
}

// deadLetterArguments returns the arguments of the dead-letter queue.
func (c Config) deadLetterArguments() amqp091.Table {
	arguments := restArguments(c.QueueType)
	maps.Copy(arguments, c.DeadLetterArguments)
	if c.DeadLetters.MaxLength > 0 {
		arguments[queuearg.MaxLength] = int64(c.DeadLetters.MaxLength)
		arguments[queuearg.Overflow] = queuearg.DropHead
	}
	if c.DeadLetters.MaxAge > 0 {
		arguments[queuearg.MessageTTL] = c.DeadLetters.MaxAge.Milliseconds()
	}
	return arguments
}

// tierArguments returns the arguments of a queue whose messages go to an exchange after a time. Only quorum queues have
// at-least-once dead-lettering, which needs reject-publish.
func tierArguments(to string, after time.Duration, queueType QueueType) amqp091.Table {
	arguments := amqp091.Table{
		queuearg.QueueType:          string(queueType),
		queuearg.MessageTTL:         after.Milliseconds(),
		queuearg.DeadLetterExchange: to,
	}
	if queueType == Quorum {
		arguments[queuearg.DeadLetterStrategy] = queuearg.AtLeastOnce
		arguments[queuearg.Overflow] = queuearg.RejectPublish
		arguments[queuearg.QueueLeaderLocator] = queuearg.Balanced
	}
	return arguments
}

// restArguments returns the arguments of a queue in which messages stay until a consumer takes them.
func restArguments(queueType QueueType) amqp091.Table {
	arguments := amqp091.Table{queuearg.QueueType: string(queueType)}
	if queueType == Quorum {
		arguments[queuearg.DeliveryLimit] = unlimited
		arguments[queuearg.QueueLeaderLocator] = queuearg.Balanced
	}
	return arguments
}
