package testapp

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
)

// Parts is an app that keeps watermill-amqp's subscriber.
type Parts struct {
	Base
	Builder *config.Builder
	Retry   message.HandlerMiddleware
}

// NewParts returns an app that does not run yet.
func NewParts(t testing.TB, change ...func(*config.Config)) *Parts {
	t.Helper()
	return Build(t, Config(t, change...))
}

// Build is NewParts with a configuration whose Prefix is the app's name.
func Build(t testing.TB, c config.Config) *Parts {
	t.Helper()
	a := &Parts{Base: newBase(t, c)}
	var err error
	a.Builder, err = config.NewBuilder(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Builder.Close()) })
	a.Builder.Observe(eventtest.OnEvent(a.observe))
	a.Retry, err = a.Builder.NewTieredRetry(a.Log)
	require.NoError(t, err)
	return a
}

// Subscriber returns a connected subscriber of the app, which its router closes.
func (a *Parts) Subscriber() message.Subscriber {
	a.t.Helper()
	s, err := amqp.NewSubscriber(a.Builder.SubscriberConfig(), a.Log)
	require.NoError(a.t, err)
	return s
}

// Handle adds n handlers with retries on a queue. Each handler has one message in flight.
func (a *Parts) Handle(queue string, handlers int, h message.NoPublishHandlerFunc) {
	a.t.Helper()
	s := a.Subscriber()
	for i := range handlers {
		a.Router.AddConsumerHandler(fmt.Sprintf("%s/%d", queue, i), queue, s, h).AddMiddleware(a.Retry)
	}
}
