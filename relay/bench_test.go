package relay_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// BenchmarkForward measures the relay alone, without a backend.
func BenchmarkForward(b *testing.B) {
	tier, out := &scripted{}, &counter{published: make(chan struct{})}
	config := relay.Config{
		Publisher: out, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return &scripted{}, nil },
	}
	withTier(tier)(&config)
	retries, err := relay.Connect(config, nil)
	require.NoError(b, err)
	router := message.NewDefaultRouter(nil)
	retries.AddConsumerHandler(router, "billing", "orders", ignore)
	go func() { _ = router.Run(context.Background()) }()
	<-router.Running()
	defer func() { _ = retries.Close() }()
	defer func() { _ = router.Close() }()

	metadata := message.Metadata{
		recordkey.Failures: "1", recordkey.Handler: "billing", recordkey.Topic: "orders", recordkey.DueAt: "2026-01-01T00:00:00.000Z",
	}
	b.ReportAllocs()
	for b.Loop() {
		msg := message.NewMessage("1", nil)
		msg.Metadata = metadata
		tier.send(msg)
		<-out.published
	}
}

type counter struct{ published chan struct{} }

func (c *counter) Publish(string, ...*message.Message) error { c.published <- struct{}{}; return nil }
func (c *counter) Close() error                              { return nil }
