package connect_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/retry"
)

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
