package connect_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestCloseTimeoutOfAHandler ends the context of its call, and not that of another handler.
func TestCloseTimeoutOfAHandler(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	var begin time.Time
	entered, ended := make(chan struct{}, 2), map[string]chan time.Duration{}
	for name, timeout := range map[string]time.Duration{"short": time.Millisecond, "long": 4 * time.Second} {
		ended[name] = make(chan time.Duration, 1)
		s.AddConsumerHandler(s.Router, name, s.Queue(name), func(msg *message.Message) error {
			entered <- struct{}{}
			<-msg.Context().Done()
			ended[name] <- time.Since(begin)
			return msg.Context().Err()
		}, retry.Options{CloseTimeout: timeout})
	}
	s.Run()
	for name := range ended {
		s.Publish(s.Queue(name), "1")
		broker.Receive(t, entered, "the handler is called")
	}
	begin = time.Now()
	require.NoError(t, s.Close())
	assert.Less(t, broker.Receive(t, ended["short"], "its context ends"), broker.Receive(t, ended["long"], "its context ends")/2)
}

// TestAfterClose: everything has an error that names the reason.
func TestAfterClose(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	s.AddConsumerHandler(s.Router, "before", s.Queue("orders"), func(*message.Message) error { return nil })
	before, err := s.Subscriber("before too")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())

	require.ErrorIs(t, s.Router.Run(context.Background()), retry.ErrClosed)
	_, err = before.Subscribe(context.Background(), s.Queue("orders"))
	require.ErrorIs(t, err, retry.ErrClosed)
	require.ErrorIs(t, before.(message.SubscribeInitializer).SubscribeInitialize(s.Queue("orders")), retry.ErrClosed)
	_, err = s.Subscriber("after")
	require.ErrorIs(t, err, retry.ErrClosed)
	router := message.NewDefaultRouter(nil)
	s.AddConsumerHandler(router, "after", s.Queue("orders"), func(*message.Message) error { return nil })
	require.ErrorIs(t, router.Run(context.Background()), retry.ErrClosed)
	require.ErrorIs(t, s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...), retry.ErrClosed)
	require.ErrorIs(t, s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...), retry.ErrClosed,
		"the error has the fix")
	var failed *failure.Error
	require.ErrorAs(t, s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...), &failed)
	require.ErrorContains(t, s.Health().Ready(), "the consuming connection is not open")
	for _, link := range s.Health().Links {
		require.Equal(t, retry.ErrClosed.Error(), link.LastError, link.Name)
		require.False(t, link.LastErrorAt.IsZero(), link.Name)
	}
}
