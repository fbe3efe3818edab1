package rabbitmq

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

// DeadLetterQueueOf names the dead-letter queue of a topic.
func (b *Builder) DeadLetterQueueOf(topic string) string {
	return naming.DeadQueue(b.config.App.QueueOf(topic))
}

// DeclareDeadLetters declares a dead-letter queue and what belongs to it, but never the work queue, nor its way back.
func (b *Builder) DeclareDeadLetters(channel *amqp091.Channel, dead string) error {
	t := b.topologyOf(naming.WorkQueueOf(dead))
	if err := t.Validate(); err != nil {
		return err
	}
	if b.config.VerifyOnly {
		return t.Verify(channel)
	}
	return t.DeclareDeadLetters(channel)
}

// DeadLetterMarshaler reads dead letters.
func (b *Builder) DeadLetterMarshaler() Marshaler { return deadLetterMarshaler{b.marshaler()} }

// deadLetterMarshaler gives the dead letters that the broker made a record like those of the middleware.
type deadLetterMarshaler struct{ marshaler }

func (m deadLetterMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	death, dead := newestDeath(delivery.Headers)
	msg, err := m.marshaler.Unmarshal(delivery)
	if err != nil {
		return nil, err
	}
	delete(msg.Metadata, middleware.UnmarshalErrorKey) // whoever reads dead letters sees it as it is
	if !dead {                                         // the middleware's own: what it publishes has no story of the broker's
		return msg, nil
	}
	if msg.Metadata == nil {
		msg.Metadata = message.Metadata{}
	}
	record, _ := middleware.ReadRecord(msg.Metadata)
	reason, _ := death["reason"].(string)
	queue, _ := death["queue"].(string)
	at, _ := death["time"].(time.Time)
	when := at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	if record.FirstFailedAt.IsZero() {
		msg.Metadata[middleware.FirstFailedAtKey] = when
	}
	msg.Metadata[middleware.FailuresKey] = strconv.Itoa(record.Failures + 1)
	msg.Metadata[middleware.LastFailedAtKey] = when
	msg.Metadata[middleware.DeadReasonKey] = reason
	msg.Metadata[middleware.ReasonKey] = "the broker dead-lettered it from queue " + queue + ": " + reason
	delete(msg.Metadata, middleware.DueAtKey)
	delete(msg.Metadata, middleware.ErrorTypeKey)
	return msg, nil
}

// newestDeath is the last entry of the broker's own story, which begins with it.
func newestDeath(headers amqp091.Table) (amqp091.Table, bool) {
	deaths, _ := headers["x-death"].([]any)
	if len(deaths) == 0 {
		return nil, false
	}
	death, ok := deaths[0].(amqp091.Table)
	return death, ok
}
