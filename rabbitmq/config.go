package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// BuilderConfig configures NewBuilder. C is the amqp.Config of watermill-amqp; M is set by the packages config and configamqp3.
type BuilderConfig[C any, M edge.Major[C]] struct {
	// AMQP is the app's own configuration, for example what amqp.NewDurableQueueConfig returns, with the app's names, arguments,
	// marshaler and topology builder. Required. It is copied and never modified.
	//
	// NewBuilder refuses Consume.NoRequeueOnNack, Publish.Transactional, streams, exclusive, auto-delete and server-named queues,
	// and with watermill-amqp v3 also a nil QueueBind.GenerateRoutingKey.
	AMQP C

	// Schedule is the delay before each retry. Required, except with Connect where its HandlerOptions have a Schedule. Every distinct delay is a tier with a queue of its own.
	Schedule backoff.Schedule

	// Rules decide about failures of one kind, in order. The tiers of their schedules are declared, too. With Connect they are those of
	// all handlers without rules of their own. Optional.
	Rules []retry.Rule

	// Jitter spreads the retries of messages that have failed together: 0.2 makes a delay of 5s a random one from 5s to 6s. Each delay
	// of Schedule and Rules then has eight tiers with a queue each: see backoff.Lanes. From 0 to 1. With Connect it is that of all
	// handlers without one of their own. The default is 0: none.
	Jitter float64

	// ExtraTiers are tiers that no schedule uses, for requested delays: see middleware.TieredRetryConfig. Optional.
	ExtraTiers []time.Duration

	// TierGroup is the name of a group of work queues that share their tiers: see topology.Config. It is for hundreds of quiet work
	// queues, because one shared tier brings messages back at 0.36 to 0.5 of the rate of tiers of each queue. With Connect it is the
	// default of all handlers. In a group, the default of ExtraTiers is backoff.Ladder(time.Second, 12 days); an empty slice that is
	// not nil means none. The default is no group: the tiers of a work queue are its own.
	TierGroup string

	// NoInbox refuses work queues that need an inbox in their group: see topology.Config.
	NoInbox bool

	// Prefix is a part of the names of exchanges (<prefix>, <prefix>.return, <prefix>.return.any, <prefix>.orphans),
	// of the queue <prefix>.orphans and of the tier queues (<work queue>.<prefix>.<tier>). The default is "retry". At
	// most 244 bytes of A-Z, a-z, 0-9, -, _, . and :. Apps may share a prefix. Metadata keys do not depend on it.
	Prefix string

	// QueueType is the type of tier and dead-letter queues. The default is topology.Quorum.
	QueueType topology.QueueType

	// WorkQueueMode is what the builder does with the app's own queues: topology.Protect, the default, or topology.Leave.
	WorkQueueMode topology.WorkQueueMode

	// DeadLetters limits what the dead-letter queues keep: see topology.Retention. The oldest dead letters are lost, and one warning is
	// logged. By default nothing is dropped.
	DeadLetters topology.Retention

	// TierArguments and DeadLetterArguments are added to the arguments of tiers and dead-letter queues: see topology.Config, which lists
	// those that may be added. Other arguments are refused. They are copied.
	TierArguments       amqp091.Table
	DeadLetterArguments amqp091.Table

	// AllowUnprotectedQuorum accepts, on RabbitMQ 4.0 to 4.2, a work queue that is a quorum queue without a dead-letter exchange
	// among its arguments. Set it if a policy protects the queue: AMQP 0-9-1 has no method to read policies. By default
	// Subscribe fails with topology.ErrUnprotectedQuorum.
	AllowUnprotectedQuorum bool

	// VerifyOnly declares nothing, not even the app's own topology. It is for apps whose user may not configure anything on the
	// broker: a user with that permission declares the topology with Topology(topic).Declare. Subscribe fails if an exchange or
	// queue is missing. A tier or dead-letter queue that is deleted later is not declared again, and failed messages are held.
	// Whether the work queue is protected is not checked, because AMQP 0-9-1 has no method to read arguments.
	VerifyOnly bool

	// Management is the address of RabbitMQ's management API, such as http://user:password@host:15672 (or https://).
	// With it, Connect looks at the start and every 15 s for tiers and inboxes with messages whose delay is over and
	// which the broker cannot forward, and Health shows them. Observers of the Connection get what waits from it: see
	// Connection.Observe. It asks for the queues of its virtual host, with a deadline of 10 s. The user needs the tag
	// "management" or "monitoring", and permissions for the virtual host. For https, the TLS settings are
	// AMQP.Connection.TLSConfig. Optional: the default is no address, and Health does not show tiers, because AMQP
	// 0-9-1 has no method for it. Only Connect uses it.
	Management string
}

// topology has all tiers.
func (c BuilderConfig[C, M]) topology() topology.Config {
	tiered := middleware.TieredRetryConfig{Schedule: c.Schedule, Rules: c.Rules, Jitter: c.Jitter, ExtraTiers: c.ExtraTiers, TiersWait: true}
	if c.TierGroup != "" && c.ExtraTiers == nil {
		tiered.ExtraTiers = groupLadder()
	}
	return c.topologyOf(scheduleOf(tiered.Tiers()))
}

func (c BuilderConfig[C, M]) topologyOf(tiers backoff.Schedule) topology.Config {
	return topology.Config{
		Schedule: tiers, TierGroup: c.TierGroup, NoInbox: c.NoInbox, Prefix: c.Prefix, QueueType: c.QueueType, WorkQueueMode: c.WorkQueueMode,
		DeadLetters: c.DeadLetters, TierArguments: maps.Clone(c.TierArguments), DeadLetterArguments: maps.Clone(c.DeadLetterArguments),
	}
}

// scheduleOf returns a schedule with these tiers.
func scheduleOf(tiers []backoff.Tier) backoff.Schedule {
	var schedule backoff.Schedule
	for _, tier := range tiers {
		schedule = append(schedule, time.Duration(tier))
	}
	return schedule
}

// Validate reports all faults of the configuration, joined. It does not connect.
func (c BuilderConfig[C, M]) Validate() error {
	var major M
	app := major.Fields(&c.AMQP)
	faults := []error{validateMajor[C, M](c.AMQP), c.topologyOf(c.Schedule).Validate(), validateApp(app, c.WorkQueueMode)}
	tiered := middleware.TieredRetryConfig{Schedule: backoff.Constant(time.Second, 1), Rules: c.Rules, Jitter: c.Jitter, ExtraTiers: c.ExtraTiers}
	if c.TierGroup == middleware.NoTierGroup {
		faults = append(faults, fmt.Errorf("TierGroup is %q, which is for handlers: leave it empty for no group", c.TierGroup))
	}
	if c.Management != "" {
		if err := management.Validate(c.Management); err != nil {
			faults = append(faults, fmt.Errorf("Management: %w", err))
		}
	}
	return errors.Join(append(faults, tiered.ValidateRules())...)
}

// plainConfig is a BuilderConfig without its Format method.
type plainConfig[C any, M edge.Major[C]] BuilderConfig[C, M]

// Format implements fmt.Formatter. It prints the configuration without the passwords in its addresses.
func (c BuilderConfig[C, M]) Format(state fmt.State, verb rune) {
	var major M
	app := major.Fields(&c.AMQP)
	*app.URI = redacted(*app.URI)
	c.Management = management.Redacted(c.Management)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), plainConfig[C, M](c))
}
