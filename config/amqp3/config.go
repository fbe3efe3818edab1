package amqp3

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// BuilderConfig configures Connect and NewBuilder.
type BuilderConfig struct {
	// AMQP is the app's own configuration, for example what amqp.NewDurableQueueConfig returns, with the app's names, arguments,
	// marshaler and topology builder. Required. It is copied and never modified.
	//
	// Consume.NoRequeueOnNack, Publish.Transactional, streams, and exclusive and auto-delete queues are refused.
	AMQP amqp.Config

	// Schedule is the delay before each retry. Required, except with Connect where its HandlerOptions have a Schedule. Every distinct
	// delay is a tier with a queue of its own.
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

	// Settings are names, types and limits of what is declared on the broker. Each has a default.
	rabbitmq.Settings
}

// plain returns the configuration without types of watermill-amqp.
func (c BuilderConfig) plain() rabbitmq.Config {
	return rabbitmq.Config{
		App: appOf(c.AMQP), Schedule: c.Schedule, Rules: c.Rules, Jitter: c.Jitter, ExtraTiers: c.ExtraTiers, TierGroup: c.TierGroup,
		Settings: c.Settings,
	}
}

// Validate reports all faults of the configuration, joined. It does not connect.
func (c BuilderConfig) Validate() error { return c.plain().Validate() }

// Format implements fmt.Formatter. It prints the configuration without the passwords in its addresses.
func (c BuilderConfig) Format(state fmt.State, verb rune) {
	type printed struct {
		AMQP       amqp.Config
		Schedule   backoff.Schedule
		Rules      []retry.Rule
		Jitter     float64
		ExtraTiers []time.Duration
		TierGroup  string
		Settings   rabbitmq.Settings
	}
	c.AMQP.Connection.AmqpURI = rabbitmq.RedactedURI(c.AMQP.Connection.AmqpURI)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), printed{
		c.AMQP, c.Schedule, c.Rules, c.Jitter, c.ExtraTiers, c.TierGroup, c.Settings,
	})
}

// Connection is what Connect returns. Its methods:
//
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Connection
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Connection.AddConsumerHandler
type Connection = rabbitmq.Connection

// Connect is that of package config, whose documentation says what becomes of each field of the amqp.Config.
func Connect(config BuilderConfig, logger watermill.LoggerAdapter, defaults ...middleware.HandlerOptions) (*Connection, error) {
	return rabbitmq.Connect(config.plain(), logger, defaults...)
}
