// Package configtest has the tests that run for every major version of watermill-amqp. Only tests import it.
package configtest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/rabbitmq"
)

// Config is the BuilderConfig of every major.
type Config[C any, M edge.Major[C]] = rabbitmq.BuilderConfig[C, M]

// Major is one major version of watermill-amqp. C is its amqp.Config.
type Major[C any] struct {
	DurableQueue, NonDurableQueue func(uri string) C
	PubSub                        func(uri, group string) C
	DeadLetters                   func(app C, group string) (C, error) // DeadLetterSubscriberConfig
	StockPublisher                message.Publisher                    // the major's own, not connected
	// Stock returns the major's own marshaler.
	Stock func(postprocess func(amqp091.Publishing) amqp091.Publishing) edge.Marshaler
}

// suite are the tests of a major and its NewBuilder.
type suite[C any, M edge.Major[C]] struct {
	Major[C]
	new func(Config[C, M]) (*rabbitmq.Builder[C, M], error)
}

const uri = "amqp://guest:guest@localhost:5672/"

func (s suite[C, M]) config(change ...func(*Config[C, M], Fields)) Config[C, M] {
	c := Config[C, M]{AMQP: s.DurableQueue(uri), Schedule: backoff.Schedule{time.Second, 5 * time.Minute, time.Second}}
	for _, f := range change {
		f(&c, fieldsOf(&c.AMQP))
	}
	return c
}

func (s suite[C, M]) builder(t testing.TB, change ...func(*Config[C, M], Fields)) *rabbitmq.Builder[C, M] {
	t.Helper()
	b, err := s.new(s.config(change...))
	require.NoError(t, err)
	return b
}
