package headers

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// deadLetterMarshaler gives the messages that the broker itself dead-lettered a failure record.
type deadLetterMarshaler struct{ *marshaler }

// NewDeadLetters returns a marshaler around the app's own, for dead-letter queues. A message that the broker
// dead-lettered has the broker's reason (delivery_limit, rejected, expired, maxlen) as its dead reason, and one failure
// more.
func NewDeadLetters(own app.Marshaler) app.Marshaler {
	return &deadLetterMarshaler{&marshaler{app: own, letters: true}}
}

func (m *deadLetterMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	death, dead := NewestDeath(delivery.Headers)
	reader := m.marshaler
	if m.isRaw(&delivery) && !dead { // the broker keeps the headers of what it dead-letters, and so also a forged one
		reader = &marshaler{app: rawCodec{}, letters: true}
	}
	msg, err := reader.Unmarshal(delivery)
	if err != nil {
		return nil, err
	}
	delete(msg.Metadata, recordkey.UnmarshalError) // a reader of dead letters gets the message as it is
	if !dead {                                     // the middleware published it, without x-death
		return msg, nil
	}
	RecordOfDeath(msg.Metadata, death).Write(msg.Metadata)
	return msg, nil
}

// isRaw reports whether the app's marshaler could not marshal a dead letter, so that it cannot read it either.
func (m *deadLetterMarshaler) isRaw(delivery *amqp091.Delivery) bool {
	_, raw := delivery.Headers[rawHeader].(string)
	return raw && m.published(delivery.Exchange, delivery.RoutingKey)
}

// rawCodec reads raw dead letters.
type rawCodec struct{ app.Marshaler }

func (rawCodec) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	msg := message.NewMessage(text(delivery.Headers, publisher.UUIDHeader), delivery.Body)
	for key, value := range delivery.Headers {
		if value, ok := value.(string); ok && key != publisher.UUIDHeader {
			msg.Metadata[key] = value
		}
	}
	return msg, nil
}

// NewestDeath returns the first entry of x-death: the broker puts the newest first. It returns false where the broker
// has not dead-lettered the message.
func NewestDeath(headers amqp091.Table) (amqp091.Table, bool) {
	deaths, _ := headers["x-death"].([]any)
	if len(deaths) == 0 {
		return nil, false
	}
	death, ok := deaths[0].(amqp091.Table)
	return death, ok
}

// RecordOfDeath returns the failure record of a message that the broker dead-lettered: the one that it had before, with
// one failure more.
func RecordOfDeath(metadata message.Metadata, death amqp091.Table) retry.Record {
	record, known := retry.ReadRecord(metadata)
	if !known { // such as a garbled count: where the message failed can still be read
		record.Topic, record.Handler = metadata[recordkey.Topic], metadata[recordkey.Handler]
	}
	reason, _ := death["reason"].(string)
	queue, _ := death["queue"].(string)
	at, _ := death["time"].(time.Time)
	at = at.UTC()
	if record.FirstFailedAt.IsZero() {
		record.FirstFailedAt = at
	}
	record.Failures++
	record.LastFailedAt, record.DueAt = at, time.Time{}
	record.DeadReason, record.ErrorType = retry.DeadReason(reason), ""
	record.Reason = "the broker dead-lettered it from queue " + queue + ": " + reason
	return record
}
