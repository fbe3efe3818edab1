package middleware_test

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// sourceOf returns the source of a connection.
func sourceOf(name string) *backend.Source {
	return &backend.Source{Owner: name, Name: "the connection of " + name, Subscribe: "use its Subscriber"}
}

// builder is the source of a builder.
func builder(token string) *backend.Source {
	return &backend.Source{Token: token, Name: "the builder of " + token, Subscribe: "use its SubscriberConfig"}
}

func from(owner, queue string) func(*message.Message) {
	return func(msg *message.Message) {
		msg.SetContext(msgctx.NewContext(msg.Context(), &msgctx.Subscription{Owner: owner, Queue: queue}))
	}
}

func marked(token string) func(*message.Message) {
	return func(msg *message.Message) { msg.Metadata[msgctx.BuilderKey] = token }
}

func TestCopiesGoToTheQueueOfTheMessage(t *testing.T) {
	for name, row := range map[string]struct {
		source *backend.Source
		mark   func(*message.Message)
		err    error
		want   string
	}{
		"by its topic":           {sourceOf("email"), from("email", ""), errDown, "1s.orders"},
		"by its queue":           {sourceOf("email"), from("email", "orders_email"), errDown, "1s.orders_email"},
		"by its queue, given up": {sourceOf("email"), from("email", "orders_email"), backoff.Permanent(errDown), "dead.orders_email"},
		"of a builder":           {builder("email"), marked("email"), errDown, "1s.orders"},
	} {
		t.Run(name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) {
				c.Source = row.source
				destination := c.Destination
				c.Destination = func(c backend.Copy) (backend.Destination, error) {
					c.Topic = cmp.Or(c.Queue, c.Topic)
					return destination(c)
				}
			})
			msg := messageOf(routed)
			row.mark(msg)
			handles(t, tiered.Middleware(failing(row.err)), msg)
			assert.Equal(t, row.want, sent.only(t).topic)
		})
	}
}

// TestTokenIsTakenOut: neither the handler, nor what it produces, nor a copy has it. A middleware outside may hand the message in again.
func TestTokenIsTakenOut(t *testing.T) {
	t.Run("handler, produced and copy", func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Source = builder("email") })
		for _, fault := range []error{nil, errDown} {
			msg := messageOf(routed)
			marked("email")(msg)
			produced, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				assert.NotContains(t, msg.Metadata, msgctx.BuilderKey)
				return []*message.Message{msg.Copy()}, fault
			})(msg)
			require.NoError(t, err)
			for _, p := range produced {
				assert.NotContains(t, p.Metadata, msgctx.BuilderKey)
			}
		}
		assert.NotContains(t, sent.only(t).msg.Metadata, msgctx.BuilderKey)
	})
	bubble(t, "again", func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Source, c.Policy.MaxHold = builder("email"), time.Second })
		sent.fail = always(errDown)
		calls := 0
		kept := message.Metadata{} // another goroutine may read it
		handler := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			calls++
			msg.Metadata = [...]message.Metadata{nil, kept, nil}[calls-1]
			return nil, errDown
		})
		msg := messageOf(routed)
		marked("email")(msg)
		for range 3 {
			_, err := handler(msg)
			require.Error(t, err)
		}
		assert.Equal(t, 3, calls)
		assert.Empty(t, kept, "a map is replaced, not written into")
	})
}

// An inbox finds the work queue of a builder's message, which its subscriber does not name.
func TestQueueOfABuildersMessage(t *testing.T) {
	for _, fault := range []error{nil, errDown} {
		tiered, sent := setup(t, func(c *settings) {
			c.Source = builder("email")
			c.Source.QueueName = func(topic string) string { return topic + "_email" }
		})
		msg := messageOf(routed)
		marked("email")(msg)
		handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			assert.Equal(t, "orders_email", msgctx.QueueOf(msg))
			return nil, fault
		}), msg)
		if fault != nil {
			assert.Equal(t, "1s.orders", sent.only(t).topic)
		}
	}
	assert.Empty(t, msgctx.QueueOf(messageOf(routed)))
}

func TestWrongSourceIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		source *backend.Source
		mark   func(*message.Message)
		want   []string
	}{
		"no connection":           {sourceOf("email"), func(*message.Message) {}, []string{"is not one of the connection of email", "use its Subscriber"}},
		"another connection":      {sourceOf("email"), from("analytics", "orders"), []string{"is not one of the connection of email"}},
		"a builder, no builder":   {builder("email"), func(*message.Message) {}, []string{"is not one of the builder of email", "use its SubscriberConfig"}},
		"another builder":         {builder("email"), marked("analytics"), []string{"is not one of the builder of email"}},
		"a builder, a connection": {builder("email"), from("email", "orders"), []string{"is not one of the builder of email"}},
		"a connection, a builder": {sourceOf("email"), marked("email"), []string{"is not one of the connection of email"}},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) { c.Source, c.Policy.MaxHold = row.source, 2*time.Minute })
			for _, h := range []message.HandlerFunc{tiered.Middleware(notCalled(t)), tiered.Dispatch(notCalled(t))} {
				msg := messageOf(routed)
				row.mark(msg)
				begin := time.Now()
				_, err := h(msg)
				assert.Equal(t, 2*time.Minute, time.Since(begin), "it is held")
				require.ErrorContains(t, err, `handler "billing" on topic "orders"`)
				for _, words := range row.want {
					require.ErrorContains(t, err, words)
					assert.Contains(t, sent.logs.String(), words)
				}
			}
			assert.Empty(t, sent.copies, "nothing is published")
		})
	}
}

func TestSettledMessageIsNotRefused(t *testing.T) {
	tiered, sent := setup(t, func(c *settings) {
		c.Source, c.Policy.MaxHold = sourceOf("email"), time.Millisecond
	})
	msg := messageOf(routed)
	msg.Ack()
	_, err := tiered.Middleware(failing(errDown))(msg)
	require.ErrorIs(t, err, errDown)
	assert.Empty(t, sent.copies)
}

// TestHeldMessageIsGivenBackWhenItsSubscriptionStops: its context ends later, so that handlers can end their messages.
func TestHeldMessageIsGivenBackWhenItsSubscriptionStops(t *testing.T) {
	for name, source := range map[string]*backend.Source{"no copy": sourceOf("email"), "wrong source": nil} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) { c.Source = sourceOf("email") })
			sent.fail = always(errDown)
			stopping, stop := context.WithTimeout(t.Context(), 3*time.Second)
			defer stop()
			b := &msgctx.Subscription{Stopping: stopping.Done()}
			if source != nil {
				b.Owner = source.Owner
			}
			msg := messageOf(msgctx.NewContext(routed, b))
			begin := time.Now()
			_, err := tiered.Middleware(failing(errDown))(msg)
			require.Error(t, err)
			assert.Equal(t, 3*time.Second, time.Since(begin))
		})
	}
}

func TestDispatchUsesTheRetryOfTheMessage(t *testing.T) {
	hour, sent := setup(t, func(c *settings) { c.Policy.Schedule = backoff.Schedule{time.Hour} })
	other, unused := setup(t)
	msg := messageOf(routed)
	b := &msgctx.Subscription{Retry: hour}
	msg.SetContext(msgctx.NewContext(routed, b))
	handles(t, other.Dispatch(failing(errDown)), msg)
	assert.Equal(t, "1h.orders", sent.only(t).topic)
	assert.Empty(t, unused.copies)
	assert.True(t, b.Claimed())
}

// Watermill keeps the middlewares of a handler by its name, also after it has stopped: the one that is added again has
// both.
func TestAMessageIsRetriedOnceBehindAnotherRetryMiddleware(t *testing.T) {
	own, sent := setup(t, observing)
	outside, unused := setup(t, observing)
	msg := messageOf(routed)
	b := &msgctx.Subscription{Retry: own}
	msg.SetContext(msgctx.NewContext(routed, b))
	handles(t, outside.Dispatch(outside.Dispatch(own.Dispatch(failing(errDown)))), msg)
	assert.Equal(t, "1s.orders", sent.only(t).topic)
	assert.Equal(t, []retry.Outcome{retry.Retried}, sent.outcomes())
	assert.Empty(t, unused.outcomes())
}

func notCalled(t *testing.T) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler is called")
		return nil, nil
	}
}
