package publisher

import (
	"fmt"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// onModel runs f with a publisher and a model of a broker that has the queue, in virtual time.
func onModel(t *testing.T, maxInFlight int, f func(t *testing.T, b *model.Broker, p *Connection)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := model.New(model.Config{Latency: time.Millisecond})
		t.Cleanup(b.Stop)
		b.DeclareQueue("queue", amqp091.Table{"x-queue-type": "quorum"})
		p, err := Open(Config{Wire: wire.Config{URI: "amqp://model", AMQP: &amqp091.Config{Dial: b.Dial}}, MaxInFlight: maxInFlight}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		f(t, b, p)
	})
}

// Messages in flight fail with their connection. Then the publisher says why it has none, and has another one as soon as
// it can.
func TestThePublisherReconnects(t *testing.T) {
	t.Parallel()
	onModel(t, 64, func(t *testing.T, b *model.Broker, p *Connection) {
		b.Withhold(regexp.MustCompile("queue"), true)
		var calls sync.WaitGroup
		for i := range 32 {
			calls.Go(func() {
				err := p.SendOne(messageOf(t.Context(), fmt.Sprint("in flight ", i)))
				assert.ErrorIs(t, err, publish.ErrNotConnected)
				assert.True(t, unconfirmed(t, err))
			})
		}
		time.Sleep(time.Second)
		require.Len(t, b.Messages("queue"), 32)
		b.Stop()
		b.Release()
		calls.Wait()
		time.Sleep(time.Minute)
		err := p.SendOne(messageOf(t.Context(), "away"))
		require.ErrorIs(t, err, publish.ErrNotConnected)
		require.ErrorContains(t, err, "connection refused")
		b.Start()
		time.Sleep(2 * time.Minute)
		require.NoError(t, p.SendOne(messageOf(t.Context(), "after")))
		require.Len(t, b.Messages("queue"), 32+1)
		health := p.Health()
		assert.Equal(t, 1, health.Reconnects)
		require.NotEmpty(t, health.LastError, "it is kept")
		assert.False(t, health.Since.Before(health.LastErrorAt))
	})
}

// A call may have more messages than may be in flight, also beside other ones, and each message has its own outcome: a
// return and a confirm come apart.
func TestMoreMessagesThanMayBeInFlight(t *testing.T) {
	t.Parallel()
	onModel(t, 8, func(t *testing.T, b *model.Broker, p *Connection) {
		const callers, each = 5, 90
		var calls sync.WaitGroup
		for caller := range callers {
			calls.Go(func() {
				var messages []Message
				for i := range each {
					m := messageOf(t.Context(), fmt.Sprint(caller, "-", i))
					if i%3 == 0 {
						m.RoutingKey = "nowhere"
					}
					messages = append(messages, m)
				}
				failures, err := p.Send(messages...)
				assert.NoError(t, err)
				assert.Len(t, failures, each, "some have failed")
				for i, err := range failures {
					assert.Equal(t, i%3 == 0, err != nil)
					if err != nil {
						assert.ErrorIs(t, err, publish.ErrUnroutable)
					}
				}
			})
		}
		calls.Wait()
		seen := map[string]bool{}
		for _, m := range b.Messages("queue") {
			seen[string(m.Body)] = true
		}
		assert.Len(t, seen, callers*each*2/3)
		assert.Len(t, b.Messages("queue"), len(seen), "none is there twice")
	})
}
