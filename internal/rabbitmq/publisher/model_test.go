package publisher

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
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

// A declaration that the broker cannot make costs the connection, with all that is in flight on it, and not once for each
// message that needs it.
func TestADeclarationThatEndsTheConnectionRests(t *testing.T) {
	t.Parallel()
	onModel(t, 64, func(t *testing.T, b *model.Broker, p *Connection) {
		b.Refuse(func(string) uint16 { return amqp091.InternalError })
		d := p.NewDeclarations("declare")
		var calls sync.WaitGroup
		ends := time.Now().Add(10 * time.Second)
		for i := range 20 {
			calls.Go(func() {
				for time.Now().Before(ends) {
					m := messageOf(t.Context(), fmt.Sprint("message ", i))
					m.RoutingKey = fmt.Sprint("tier ", i%3)
					if err := p.SendOne(m); errors.Is(err, publish.ErrUnroutable) {
						err = d.Resend(m, m.RoutingKey, err, time.Now(), func(channel *amqp091.Channel) error {
							_, err := channel.QueueDeclare(m.RoutingKey, true, false, false, false, nil)
							return err
						})
						assert.ErrorIs(t, err, publish.ErrUnroutable)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		calls.Wait()
		require.NoError(t, d.do(t.Context(), p.link.State().Connection, "good", time.Now(), func(*amqp091.Channel) error {
			return nil
		}), "what can be declared does not rest")
		reconnects := p.Health().Reconnects
		assert.LessOrEqual(t, reconnects, 10)
		assert.Positive(t, reconnects)
		b.Refuse(nil)
		time.Sleep(time.Second)
		m := messageOf(t.Context(), "after")
		m.RoutingKey = "tier 0"
		err := p.SendOne(m)
		require.ErrorIs(t, err, publish.ErrUnroutable)
		require.NoError(t, d.Resend(m, m.RoutingKey, err, time.Now(), func(*amqp091.Channel) error {
			b.DeclareQueue(m.RoutingKey, amqp091.Table{"x-queue-type": "quorum"})
			return nil
		}))
	})
}

// The broker closes the channel because of a message over its max_message_size, and those that are in flight on it come
// twice. Only the first such message on a connection costs that.
func TestOnlyTheFirstMessageThatIsTooLargeClosesAChannel(t *testing.T) {
	t.Parallel()
	onModel(t, 64, func(t *testing.T, b *model.Broker, p *Connection) {
		small := func(i int) { require.NoError(t, p.SendOne(messageOf(t.Context(), fmt.Sprint("message ", i)))) }
		large := messageOf(t.Context(), "large")
		large.Publishing.Body = make([]byte, 20<<20)
		for i := range 3 {
			small(i)
			err := p.SendOne(large)
			require.ErrorIs(t, err, publish.ErrRefused)
			require.ErrorContains(t, err, "the payload has 20971520 bytes, and the broker's max_message_size is ")
		}
		small(3)
		assert.Len(t, b.Messages("queue"), 4)
		assert.Equal(t, 1, strings.Count(b.Trace(), "error 406"))
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
