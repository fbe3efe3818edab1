package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// CloseTimeout of a handler ends the context of its call, and not that of another handler.
func TestCloseTimeoutOfAHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := model.New(model.Config{})
		defer broker.Stop()
		rabbit := connected(t, broker, watermill.NopLogger{})
		var begin time.Time
		called := make(chan struct{}, 2)
		short, long := make(chan time.Duration, 1), make(chan time.Duration, 1)
		add := func(router *message.Router, name string, timeout time.Duration, ended chan time.Duration) {
			rabbit.AddConsumerHandler(router, name, name, func(msg *message.Message) error {
				called <- struct{}{}
				<-msg.Context().Done()
				ended <- time.Since(begin)
				return msg.Context().Err()
			}, retry.Options{CloseTimeout: timeout})
		}
		stop := handling(t, func(router *message.Router) {
			add(router, "short", time.Millisecond, short)
			add(router, "long", time.Hour, long)
		})
		for _, queue := range []string{"short", "long"} {
			require.NoError(t, rabbit.Publisher().Publish(queue, message.NewMessage(queue, nil)))
			<-called
		}
		begin = time.Now()
		require.NoError(t, rabbit.Close())
		assert.Equal(t, time.Millisecond, <-short)
		assert.Equal(t, time.Hour, <-long)
		stop()
	})
}
