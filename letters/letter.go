package letters

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// Kind is who gave a message up.
type Kind string

const (
	// Library is a dead letter of the retry middleware.
	Library Kind = "library"
	// Broker is a message that the broker itself dead-lettered, for example at its delivery limit.
	Broker Kind = "broker"
	// Poison is a message of Watermill's PoisonQueue.
	Poison Kind = "poison"
	// Orphan is a message whose work queue was gone when its delay was over.
	Orphan Kind = "orphan"
	// Unknown is a message without any record of a failure.
	Unknown Kind = "unknown"
)

// A Letter is a dead letter or an orphan. Its JSON leaves out what is empty.
type Letter struct {
	// ID is the UUID of the message, or else its AMQP message-id, or else a hash of the letter that begins with "#".
	// Letters of the same message have the same ID.
	ID string `json:"id"`
	// Queue is where the letter is: a queue or a topic.
	Queue string `json:"queue"`
	// Target is the work queue or topic that a redrive sends it to. Empty: unknown; Redrive.To names it.
	Target string `json:"target,omitzero"`
	Kind   Kind   `json:"kind"`
	// Record is the failure record. For letters of Broker and Poison it has what their own records have.
	Record retry.Record `json:"record"`
	// Redriven is how often the message was redriven before.
	Redriven Redriven `json:"redriven,omitzero"`
	// Metadata are the headers of the app that are strings, without the record.
	Metadata message.Metadata `json:"metadata,omitempty"`
	// Headers are those of the app that are not strings.
	Headers map[string]any `json:"headers,omitempty"`
	// Properties are those of AMQP, by their name, and the exchange and routing_key that the message was first
	// published with.
	Properties map[string]string `json:"properties,omitempty"`
	Payload    []byte            `json:"payload,omitempty"`
}

// DeadAt is when the message was given up: the time of its last failure. It is zero where that is unknown.
func (l *Letter) DeadAt() time.Time { return l.Record.LastFailedAt }

// Fresh returns a copy of a dead letter without its failure record, for handlers that forward a letter themselves:
// with the record its retries are still used up. The app's own metadata, the AMQP properties and the history of
// redrives stay. The copy has the context of msg.
func Fresh(msg *message.Message) *message.Message {
	fresh := msg.CopyWithContext()
	for _, key := range retry.RecordKeys() {
		delete(fresh.Metadata, key)
	}
	return fresh
}
