package connect_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestHandlerWithoutMiddleware: its messages are nacked, after a pause, and one warning names handler, queue and fix.
func TestHandlerWithoutMiddleware(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	subscriber, err := s.Subscriber("billing")
	require.NoError(t, err)
	deliveries := testapp.NewLedger()
	done := testapp.NewLedger()
	s.Router.AddConsumerHandler("billing", s.Queue("orders"), subscriber, func(msg *message.Message) error {
		if deliveries.Add(msg.UUID) < 5 {
			return errDown
		}
		done.Add(msg.UUID)
		return nil
	})
	s.Run()
	s.Publish(s.Queue("orders"), testapp.IDs(5)...)
	done.Wait(t, 5, soon)
	warnings := s.Log.Lines("no retry middleware")
	require.Len(t, warnings, 1)
	for _, text := range []string{"warn ", `Handler "billing" has no retry middleware`, `queue "` + s.Queue("orders") + `"`, "handler.AddMiddleware(rabbit.Middleware)"} {
		assert.Contains(t, warnings[0], text)
	}
	assert.Equal(t, 1, s.Log.Warnings("no retry middleware"))
}

// TestWrongHandlers: the router's Run has all faults of a handler.
func TestWrongHandlers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change  func(*config.Config)
		topic   string
		options []retry.Options
		want    []string
	}{
		"several faults": {
			options: []retry.Options{{
				Policy: &retry.Policy{Schedule: backoff.Schedule{-time.Second}, MaxHold: -time.Second}, Concurrency: -1,
			}},
			want: []string{`handler "billing"`, "Schedule: backoff: retry 1: delay -1s", "Concurrency is -1", "MaxHold is -1s"},
		},
		"two options": {options: make([]retry.Options, 2), want: []string{"2 Options were given"}},
		"too many": {options: []retry.Options{{Concurrency: 70_000}},
			want: []string{"Concurrency is 70000: it must be between 0 (the default) and 65535"}},
		"below the default": {options: []retry.Options{{Prefetch: 15}},
			want: []string{"Prefetch is 15: it must be between Concurrency, 16, and 65535, or 0 (the default)"}},
		"far ahead": {options: []retry.Options{{Concurrency: 70_000, Prefetch: 65_536}},
			want: []string{"Concurrency is 70000", "Prefetch is 65536: it must be between 0 (the default) and 65535"}},
		"group of a queue": {options: []retry.Options{{Group: "mails"}}, want: []string{`Group is "mails", but AMQP.Exchange.GenerateName returns no exchange`, "NewDurablePubSubConfig"}},
		"no group, no name": {change: testapp.FanOut,
			want: []string{"AMQP.Queue.GenerateName is nil, and there is no Group"}},
		"pattern":             {topic: "orders.#", want: []string{"must not contain the words * or #"}},
		"name of a tier":      {topic: "orders.dead", want: []string{"it has the name of a queue of the retry topology"}},
		"two topics, a queue": {change: oneQueue, want: []string{"has the same work queue as topic", `set a Group, or an AMQP.Queue.GenerateName with another name`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testapp.New(t, func(b *config.Config) {
				if row.change != nil {
					row.change(b)
				}
			})
			if name == "two topics, a queue" {
				_ = s.AddConsumerHandler(message.NewDefaultRouter(nil), "other", "other",
					func(*message.Message) error { return nil })
			}
			topic := s.Queue("orders")
			if row.topic != "" {
				topic = strings.Replace(row.topic, "orders", topic, 1)
			}
			s.AddConsumerHandler(s.Router, "billing", topic, func(*message.Message) error { return nil }, row.options...)
			err := s.Router.Run(context.Background())
			require.Error(t, err)
			for _, text := range row.want {
				assert.ErrorContains(t, err, text)
			}
			assert.False(t, testapp.Exists(t, topic), "nothing is declared")
		})
	}
}

// TestFaultsOfAllHandlers: Run has the faults of every handler, whichever the router subscribes first, and each line
// has the name of its handler. No handler consumes, not even one without a fault.
func TestFaultsOfAllHandlers(t *testing.T) {
	t.Parallel()
	const handlers = 8
	s := testapp.New(t, func(b *config.Config) { b.AMQP.Publish.GenerateRoutingKey = nil })
	process := func(*message.Message) error { return nil }
	var want []string
	for i := range handlers {
		name := fmt.Sprintf("wrong%d", i)
		want = append(want, fmt.Sprintf("handler %q: Concurrency is -1: it must be between 0 (the default) and 65535", name),
			fmt.Sprintf("handler %q: CloseTimeout is -1s: it must be 0 (the default) or more", name))
		s.AddConsumerHandler(s.Router, name, s.Queue("orders"), process,
			retry.Options{Concurrency: -1, CloseTimeout: -time.Second})
		s.AddConsumerHandler(s.Router, fmt.Sprintf("right%d", i), s.Queue("orders"), process)
	}
	s.AddHandler(s.Router, "onward", s.Queue("orders"), s.Queue("invoices"), message.PassthroughHandler)
	want = append(want, `handler "onward": AMQP.Publish.GenerateRoutingKey is nil: it must return the routing key of a topic's messages`)
	s.AddConsumerHandler(s.Router, "nil", s.Queue("orders"), nil)
	s.AddHandler(s.Router, "nil too", s.Queue("orders"), s.Queue("orders"), nil)
	const isNil = ": its function is nil: pass the function that handles its messages"
	want = append(want, `handler "nil"`+isNil, `handler "nil too"`+isNil, strings.Replace(want[len(want)-1], "onward", "nil too", 1))
	subscriber, err := s.Subscriber("own")
	require.NoError(t, err)

	err = s.Router.Run(context.Background())
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	_, lines[0], _ = strings.Cut(lines[0], ": ") // what the router writes before it
	assert.Equal(t, want, lines)
	_, err = subscriber.Subscribe(context.Background(), s.Queue("orders"))
	require.ErrorContains(t, err, want[0])
	require.ErrorContains(t, subscriber.(message.SubscribeInitializer).SubscribeInitialize(s.Queue("orders")), want[0])
	assert.False(t, testapp.Exists(t, s.Queue("orders")), "nothing is declared")
	assert.Empty(t, s.Health().Subscriptions)
	require.ErrorContains(t, s.Publisher().Publish("orders", testapp.Messages("1")...), "AMQP.Publish.GenerateRoutingKey is nil")
}

// oneQueue gives all topics the same queue.
func oneQueue(b *config.Config) {
	queue := "queue_" + b.Prefix
	b.AMQP.Queue.GenerateName = func(string) string { return queue }
}

// TestWrongSubscriber: options are refused at once, faults of a topic by Subscribe.
func TestWrongSubscriber(t *testing.T) {
	t.Parallel()
	s := testapp.New(t)
	_, err := s.Subscriber("", retry.Options{Concurrency: -1})
	require.ErrorContains(t, err, "its name is empty")
	require.ErrorContains(t, err, "Concurrency is -1")
	subscriber, err := s.Subscriber("billing", retry.Options{Group: "mails"})
	require.NoError(t, err)
	_, err = subscriber.Subscribe(context.Background(), s.Queue("orders"))
	require.ErrorContains(t, err, `Group is "mails"`)
	require.ErrorContains(t, subscriber.(message.SubscribeInitializer).SubscribeInitialize(s.Queue("orders")), `Group is "mails"`)
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
