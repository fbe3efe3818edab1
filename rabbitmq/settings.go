package rabbitmq

import (
	"encoding/json"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Settings are the names, the types and the limits of what is declared on the broker. They are part of the Config of
// packages config and config/amqp3. Every field has a default.
type Settings struct {
	// Prefix is a part of the names of exchanges (<prefix>, <prefix>.return, <prefix>.return.any, <prefix>.orphans),
	// of the queue <prefix>.orphans and of the tier queues (<work queue>.<prefix>.<tier>). The default is "retry". At
	// most 244 bytes of A-Z, a-z, 0-9, -, _, . and :. Apps may share a prefix. Metadata keys do not depend on it.
	Prefix string

	// QueueType is the type of tier and dead-letter queues. The default is topology.Quorum.
	QueueType topology.QueueType

	// WorkQueueMode is what is done with the app's own queues: topology.Protect, the default, or topology.Leave.
	WorkQueueMode topology.WorkQueueMode

	// DeadLetters limits what the dead-letter queues keep: see topology.Retention. The oldest dead letters are lost,
	// and one warning is logged. By default nothing is dropped.
	DeadLetters topology.Retention

	// TierArguments and DeadLetterArguments are added to the arguments of tiers and dead-letter queues: see
	// topology.Config, which lists those that may be added. Other arguments are refused. They are copied.
	TierArguments       amqp091.Table
	DeadLetterArguments amqp091.Table

	// AllowUnprotectedQuorum accepts, on RabbitMQ 4.0 to 4.2, a work queue that is a quorum queue without a dead-letter
	// exchange among its arguments. Set it if a policy protects the queue: AMQP 0-9-1 has no method to read policies.
	// By default Subscribe fails with topology.ErrUnprotectedQuorum.
	AllowUnprotectedQuorum bool

	// VerifyOnly declares nothing, not even the app's own topology. It is for apps whose user may not configure
	// anything on the broker: a user with that permission declares the topology with Builder.Topology(topic).Declare.
	// Subscribe fails if an exchange or queue is missing. A tier or dead-letter queue that is deleted later is not
	// declared again, and failed messages are held. Whether the work queue is protected is not checked, because AMQP
	// 0-9-1 has no method to read arguments.
	VerifyOnly bool

	// Management is the address of RabbitMQ's management API, such as http://host:15672 (or https://). Without user and
	// password it has those of the broker's address.
	// With it, Connect looks at the start and every 15 s for tiers and inboxes with messages whose delay is over and
	// which the broker cannot forward, and Health shows them. Observers of the Connection get what waits from it: see
	// Connection.Observe. It asks for the queues of its virtual host, with a deadline of 10 s. The user needs the tag
	// "management" or "monitoring", and permissions for the virtual host. For https, the TLS settings are
	// AMQP.Connection.TLSConfig. Optional: the default is no address, and Health does not show tiers, because AMQP
	// 0-9-1 has no method for it. Only Connect uses it.
	Management string
}

// plainSettings are Settings without their methods.
type plainSettings Settings

// Format implements fmt.Formatter. It prints the settings without the password in the address, whatever the verb as
// %v does: with a wrong verb, fmt prints what a pointer leads to.
func (s Settings) Format(state fmt.State, _ rune) {
	s.Management = management.Redacted(s.Management)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), plainSettings(s))
}

// MarshalJSON implements json.Marshaler. The JSON has no password in the address.
func (s Settings) MarshalJSON() ([]byte, error) {
	s.Management = management.Redacted(s.Management)
	return json.Marshal(plainSettings(s))
}
