package config

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/middleware"
)

// DeadLetterSubscriberConfig is a configuration for amqp.NewSubscriber that reads dead letters: to subscribe to the topic of
// the work queue is to read its dead-letter queue. Every message has a failure record, also one that the broker itself
// dead-lettered: its dead reason is then the broker's (delivery_limit, rejected, expired, maxlen). Acknowledging a message
// removes the dead letter. Do not add the retry middleware to its handlers.
func (b *Builder) DeadLetterSubscriberConfig() amqp.Config {
	config := clone(b.app)
	workQueue := config.Queue.GenerateName
	config.Queue.GenerateName = func(topic string) string { return deadQueue(workQueue(topic)) }
	config.Exchange.GenerateName = func(string) string { return "" }
	config.Consume.Exclusive = false
	config.TopologyBuilder = deadLetterTopology{b}
	config.Marshaler = deadLetterMarshaler{b.marshaler()}
	return config
}

// deadLetterTopology declares the dead-letter queue and what belongs to it, but never the work queue.
type deadLetterTopology struct{ builder *Builder }

func (t deadLetterTopology) BuildTopology(channel *amqp091.Channel, dead, _ string, _ amqp.Config, _ watermill.LoggerAdapter) error {
	topology := t.builder.topologyOf(dead[:len(dead)-len(deadQueue(""))])
	if err := topology.Validate(); err != nil {
		return err
	}
	if t.builder.verify {
		return topology.Verify(channel)
	}
	return topology.declareRetry(channel, topology.Bindings[:len(topology.Bindings)-1])
}

func (t deadLetterTopology) ExchangeDeclare(*amqp091.Channel, string, amqp.Config) error { return nil }

// deadLetterMarshaler gives the dead letters that the broker made a record like those of the middleware.
type deadLetterMarshaler struct{ marshaler }

func (m deadLetterMarshaler) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	death, dead := newestDeath(delivery.Headers)
	msg, err := m.marshaler.Unmarshal(delivery)
	if err != nil {
		return nil, err
	}
	delete(msg.Metadata, middleware.UnmarshalErrorKey) // whoever reads dead letters sees it as it is
	if _, known := msg.Metadata[middleware.DeadReasonKey]; known || !dead {
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
