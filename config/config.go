package config

import (
	"encoding/json"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

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

// Connect opens two connections to the broker, one for consuming and one for publishing, for any number of handlers,
// consumer groups and schedules. The first handler with Order.Partitions opens a third one, for moving messages to
// partitions. Their names on the broker are "watermill-retry subscriber", "watermill-retry publisher" and
// "watermill-retry mover". They reconnect by themselves. Connect returns an error that joins all faults, or at once the
// reason why it cannot connect: it does not wait for a broker that cannot be reached. A nil logger logs nothing.
//
// The methods of the retry.Connection are documented there. What they do on RabbitMQ:
//
//   - AddConsumerHandler, AddHandler, Subscriber: the default of Concurrency is 16, and that of Prefetch 32.
//   - Publisher: the exchange is that of Exchange.GenerateName, and the routing key that of Publish.GenerateRoutingKey.
//     Before the first publish to an exchange, and again after a reconnect, the app's topology builder declares it,
//     unless VerifyOnly is set. Publish returns nil only after the broker has routed and confirmed all messages.
//     Otherwise the error wraps those of package publish, such as publish.ErrUnroutable for a message that no queue
//     got: a subscriber of the topic must run once first, because it declares the queue. A message without a delivery
//     mode is persistent: for others, the marshaler sets amqp091.Transient.
//   - Pause: the consumers are cancelled, and stay so across a reconnect. Messages that were fetched and not handed to
//     the handler go back to the queue in their order; before RabbitMQ 4.3 that counts a delivery of them. With an
//     Order and a limit for another reason, the few that were fetched are handed out. Then no message is
//     unacknowledged.
//   - Health: the links are "consuming", "publishing", and "moving" with Order.Partitions. With Settings.Management it
//     has the tiers and inboxes that are overdue.
//   - Observe: Observed.Waiting has the work queues of the handlers that have subscribed, with their tiers and dead
//     letters, and the orphans. With Settings.Management its numbers are those of the management API, which are up to
//     five seconds old. Without it, and where the API takes more than half of the time, the broker is asked for each
//     queue: then only messages count that no consumer has, a quorum queue that is busy can show 0, and one call asks
//     for up to 500 queues; the next call goes on with the rest. No message is read.
//   - Close waits for the messages in flight, for up to Options.CloseTimeout and one second more.
//
// The app's configuration, config.AMQP, is that of watermill-amqp, but subscriber and publishers are those of this
// library. These fields differ from what watermill-amqp does with them:
//
//	Connection.Reconnect          only BackoffInitialInterval and BackoffMaxInterval are used; the pause doubles, and
//	                              is shortened at random by up to a half; defaults 100 ms and 5 s
//	Queue.GenerateName            not called for a handler with a Group, and may be nil if each handler has one
//	Publish.GenerateRoutingKey    may be nil if the app does not publish
//	Publish.Mandatory,
//	Publish.ConfirmDelivery       always true: an unroutable or unconfirmed message is an error
//	Publish.Immediate             refused: RabbitMQ does not have it
//	Publish.ChannelPoolSize       not used: all messages share one channel
//	Consume.Consumer              the consumer tag of every handler; each has an AMQP channel of its own
//	Consume.Exclusive             no quorum queue, of any version, refuses a second consumer for it; classic ones do
//	Consume.NoWait                not used: the broker's answer is always waited for
//	Consume.Qos.PrefetchCount     the prefetch of a handler without a Prefetch, where it is more than the default
//	Consume.Qos.PrefetchSize      refused: RabbitMQ does not have it
//	Consume.Qos.Global            not used: each handler has an AMQP channel of its own, so it would change nothing
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	return door.Connect(config.plain(), logger)
}
