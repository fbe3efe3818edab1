package topology

import (
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// QueueType is the type of tier and dead-letter queues.
type QueueType string

const (
	// Quorum is the default. A quorum queue is replicated, and dead-letters expired messages at least once.
	Quorum QueueType = "quorum"
	// Classic gives up the guarantee that no message is lost: a classic tier dead-letters expired messages without a
	// confirm, so a message that is just expiring is lost if the broker crashes.
	Classic QueueType = "classic"
)

// WorkQueueMode is what the builder does with the app's own queues: Protect, the default, or Leave, which declares them
// exactly as the app's own configuration does.
type WorkQueueMode string

const (
	// Protect is the default. A work queue that does not exist is declared as a quorum queue that dead-letters what the
	// broker itself gives up, and does not drop it: after 20 redeliveries, or by the app's own
	// arguments. An existing queue with other arguments stays as it is, and the builder logs one warning. An argument
	// that the app has set is kept.
	Protect WorkQueueMode = "protect"
	// Leave declares the work queue with the app's own arguments only.
	Leave WorkQueueMode = "leave"
)

const (
	maxPartitions = 256
	maxPrefetch   = 1<<16 - 1 // basic.qos sends it in two bytes
)

// Config configures New. Only Tiers is required.
type Config struct {
	// Tiers are the delays that messages wait for, each in a queue of its own. Required. The order does not matter.
	// Those of a schedule are backoff.Schedule.Tiers.
	Tiers []backoff.Tier

	// Prefix is a part of the names of exchanges (<prefix>, <prefix>.return, <prefix>.return.any, <prefix>.orphans),
	// of the queue <prefix>.orphans and of the tier queues (<work queue>.<prefix>.<tier>). The default is "retry". At
	// most 244 bytes of A-Z, a-z, 0-9, -, _, . and :.
	Prefix string

	// TierGroup is the name of a group of work queues that share their tiers: one queue <group>.<prefix>.<tier> for
	// each tier, whatever the number of work queues. The default is the work queue itself, whose tiers are its own. A
	// message comes back to its own work queue only. No work queue of the virtual host may have the name of a group.
	//
	// A work queue of a group that can refuse messages or be away has an inbox between the tiers and itself, the queue
	// <work queue>.<prefix>.inbox: any that is not a quorum queue, and any with a length limit. Without it, 32 messages
	// that such a queue does not take stop the retries of the whole group for three to six minutes at a time. A limit
	// that a policy sets cannot be seen.
	TierGroup string

	// Partitions is the number of queues <work queue>.order.<n>, from 0, for a handler that keeps the order of messages
	// with one key. The exchange <work queue>.order takes their messages, with the number as the routing key. Each has
	// a single active consumer, and so has the work queue, whose messages are moved to them. The queue
	// <work queue>.order.members has a consumer of each process, and no messages. Tiers may be empty then. Arguments
	// with which the work queue would lose messages, or change their order, are refused. The default is 0: none. At most
	// 256. It stays the same for the life of the queues, and so does Prefetch.
	Partitions int

	// Prefetch is that of the consumers of a partition: with a smaller one messages would change their order. Required
	// with Partitions, from 1 to 65,535. Both numbers are a part of x-delivery-limit of the partitions, by which the
	// broker refuses others.
	Prefetch int

	// QueueType is the type of tier and dead-letter queues. The default is Quorum.
	QueueType QueueType

	// WorkQueueMode is what is declared for the work queue: Protect, the default, or Leave.
	WorkQueueMode WorkQueueMode

	// DeadLetters limits what the dead-letter queue keeps. By default it keeps all dead letters until a reader takes
	// them.
	DeadLetters Retention

	// TierArguments are added to the arguments of the tiers. All work queues of a group, and all apps with the same
	// work queue, need the same. These may be added; Validate refuses all others, each with the reason:
	//
	//	x-max-length                  messages of a tier, at least 1
	//	x-max-length-bytes            bytes of the bodies of a tier's messages, at least 1
	//	x-queue-leader-locator        "balanced", the default of quorum queues, or "client-local"; of a
	//	                              classic queue from RabbitMQ 4.0 on
	//	x-quorum-initial-group-size   replicas of a quorum queue when it is declared, at least 1
	//	x-quorum-target-group-size    replicas that the broker adds up to, at least 1
	//	x-queue-version               of a classic queue
	//
	// A tier at its limit refuses messages (x-overflow=reject-publish), and drops none. The retry middleware then takes
	// the next longer tier, or rounds on a shorter one. Where all tiers are full, a failed message becomes a dead
	// letter. An inbox gets the three in the middle too, and no length limit.
	TierArguments amqp091.Table

	// DeadLetterArguments are added to the arguments of the dead-letter queue: those of TierArguments without the
	// length limits, for which there is DeadLetters.
	DeadLetterArguments amqp091.Table
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = string(naming.Default)
	}
	if c.QueueType == "" {
		c.QueueType = Quorum
	}
	if c.WorkQueueMode == "" {
		c.WorkQueueMode = Protect
	}
	return c
}

func (c Config) prefix() naming.Prefix { return naming.Of(c.Prefix) }

// Validate reports all faults of the configuration, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Partitions < 0 || c.Partitions > maxPartitions {
		fault("Partitions is %d: it must be between 0 (none) and %d", c.Partitions, maxPartitions)
	}
	if c.Partitions > 0 && (c.Prefetch < 1 || c.Prefetch > maxPrefetch) {
		fault("Prefetch is %d: with Partitions it must be between 1 and %d", c.Prefetch, maxPrefetch)
	}
	if len(c.Tiers) == 0 && c.Partitions <= 0 {
		fault("Tiers is empty: name at least one, for example backoff.Exponential(time.Second, 5, 4).Tiers()")
	}
	for _, tier := range c.Tiers {
		delay := time.Duration(tier)
		if delay < time.Millisecond || delay > backoff.MaxDelay || delay%time.Millisecond != 0 {
			fault("Tiers has %v: a delay must be a whole number of milliseconds, from %v to %v", delay,
				backoff.Tier(time.Millisecond), backoff.Tier(backoff.MaxDelay))
		}
	}
	if err := naming.Prefix(c.Prefix).Validate(); err != nil {
		faults = append(faults, err)
	}
	if c.TierGroup != "" {
		if err := naming.Prefix(c.Prefix).ValidateGroup(c.TierGroup); err != nil {
			faults = append(faults, err)
		}
	}
	if c.QueueType != Quorum && c.QueueType != Classic {
		fault("QueueType is %q: it must be %q or %q", c.QueueType, Quorum, Classic)
	}
	if c.WorkQueueMode != Protect && c.WorkQueueMode != Leave {
		fault("WorkQueueMode is %q: it must be %q or %q", c.WorkQueueMode, Protect, Leave)
	}
	faults = append(faults, c.DeadLetters.faults()...)
	faults = append(faults, tierKeys.faults("TierArguments", c.TierArguments, c.QueueType, tierReasons)...)
	faults = append(faults, deadLetterKeys.faults("DeadLetterArguments", c.DeadLetterArguments, c.QueueType,
		deadLetterReasons)...)
	return errors.Join(faults...)
}
