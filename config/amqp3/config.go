package amqp3

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/door"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// Config configures Connect and NewBuilder. What its fields have, what Connect makes of them, and the options of each
// handler:
//
//	go doc github.com/tieredretry/watermill-retry/retry.Policy
//	go doc github.com/tieredretry/watermill-retry/rabbitmq.Settings
//	go doc github.com/tieredretry/watermill-retry/config.Connect
//	go doc github.com/tieredretry/watermill-retry/retry.Connection
//	go doc github.com/tieredretry/watermill-retry/retry.Options
type Config struct {
	// AMQP is the app's own configuration, for example what amqp.NewDurableQueueConfig returns, with the app's names,
	// arguments, marshaler and topology builder. Required. It is copied and never modified.
	//
	// Consume.NoRequeueOnNack, Publish.Transactional, streams, and exclusive and auto-delete queues are refused.
	AMQP amqp.Config

	// Policy decides about failures: with Connect, of all handlers without a policy of their own. Its Schedule is
	// required. Every distinct delay is a tier with a queue of its own.
	Policy retry.Policy

	// Settings are names, types and limits of what is declared on the broker. Each has a default. In a literal:
	//
	//	Settings: rabbitmq.Settings{VerifyOnly: true}
	rabbitmq.Settings
}

// plain returns the configuration without types of watermill-amqp.
func (c Config) plain() door.Config {
	return door.Config{App: appOf(c.AMQP), Policy: c.Policy, Settings: c.Settings}
}

// Validate reports all faults of the configuration, joined. It does not connect.
func (c Config) Validate() error { return c.plain().Validate() }

// Format implements fmt.Formatter. It prints the configuration without the passwords in its addresses, whatever the
// verb as %v does: with a wrong verb, fmt prints what a pointer leads to.
func (c Config) Format(state fmt.State, _ rune) {
	type printed struct {
		AMQP     amqp.Config
		Policy   retry.Policy
		Settings rabbitmq.Settings
	}
	c.AMQP.Connection.AmqpURI = wire.RedactedURI(c.AMQP.Connection.AmqpURI)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), printed{c.AMQP, c.Policy, c.Settings})
}

// MarshalJSON implements json.Marshaler for a log: the JSON is a text, what Format prints with %+v.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%+v", c)) }

// Connect is that of package config, whose documentation says what the methods of the Connection do, and what becomes
// of each field of the amqp.Config.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	return door.Connect(config.plain(), logger)
}
