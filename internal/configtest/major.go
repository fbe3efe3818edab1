// Package configtest tests what the builders for all majors of watermill-amqp have to do alike. Only tests import it.
package configtest

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Config has the fields of every major's BuilderConfig, so that one is converted into the other. C is the major's amqp.Config.
type Config[C any] struct {
	AMQP                   C
	Schedule               backoff.Schedule
	Prefix                 string
	QueueType              topology.QueueType
	WorkQueueMode          topology.WorkQueueMode
	AllowUnprotectedQuorum bool
	VerifyOnly             bool
}

// Builder is every major's.
type Builder[C any] interface {
	SubscriberConfig() C
	DeadLetterSubscriberConfig() C
	NewPublisher(watermill.LoggerAdapter) (*publisher.Publisher, error)
	TieredRetryConfig(message.Publisher) middleware.TieredRetryConfig
	Topology(topic string) topology.Topology
}

// Fields are those of a major's amqp.Config that the tests look at or change.
type Fields struct {
	URI        *string
	TLS        **tls.Config
	Connection **amqp091.Config
	Reconnect  *time.Duration // the longest pause; nil where there is no configuration of it

	Queue, Exchange, QueueBind, Consume *amqp091.Table // their arguments

	Durable, Exclusive, AutoDelete, NoRequeueOnNack, Transactional, ConsumeExclusive *bool

	Marshaler    rabbitmq.Marshaler
	SetMarshaler func(rabbitmq.Marshaler)

	QueueName, ExchangeName func(topic string) string
}

// Major is one of watermill-amqp's, and the builder for it.
type Major[C any] struct {
	DurableQueue, NonDurableQueue func(uri string) C
	PubSub                        func(uri, group string) C
	WithReconnect                 func(C) C
	Fields                        func(*C) Fields
	// Stock is the major's own marshaler.
	Stock func(postprocess func(amqp091.Publishing) amqp091.Publishing) rabbitmq.Marshaler

	Validate func(Config[C]) error
	New      func(Config[C]) (Builder[C], error)
	// Printed are the configuration and a builder of it, if it makes one, in all ways in which somebody may print them.
	Printed func(Config[C]) []any
}

const uri = "amqp://guest:guest@localhost:5672/"

func (m Major[C]) config(change ...func(*Config[C], Fields)) Config[C] {
	c := Config[C]{AMQP: m.DurableQueue(uri), Schedule: backoff.Schedule{time.Second, 5 * time.Minute, time.Second}}
	for _, f := range change {
		f(&c, m.Fields(&c.AMQP))
	}
	return c
}

func (m Major[C]) builder(t testing.TB, change ...func(*Config[C], Fields)) Builder[C] {
	t.Helper()
	b, err := m.New(m.config(change...))
	require.NoError(t, err)
	return b
}

func (m Major[C]) fields(c C) Fields { return m.Fields(&c) }
