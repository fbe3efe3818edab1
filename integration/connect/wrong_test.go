package connect_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

func process(*message.Message) error { return nil }

// subscribes returns the errors of both methods of a subscriber, which must be the same.
func subscribes(t *testing.T, s message.Subscriber, topic string) error {
	t.Helper()
	_, err := s.Subscribe(t.Context(), topic)
	require.Error(t, err)
	require.EqualError(t, s.(message.SubscribeInitializer).SubscribeInitialize(topic), err.Error())
	return err
}

// TestHandlerWithoutMiddleware: its messages are nacked, after a pause, and one warning names handler, queue and fix.
func TestHandlerWithoutMiddleware(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, _ *model.Broker, c config.Config) {
		s := testapp.Connect(t, c)
		subscriber, err := s.Subscriber("billing")
		require.NoError(t, err)
		deliveries, want := testapp.NewLedger(), map[string]int{}
		s.Router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
			if deliveries.Add(msg.UUID) < 5 {
				return errDown
			}
			return nil
		})
		s.Run()
		for _, uuid := range testapp.IDs(5) {
			s.Publish("orders", uuid)
			want[uuid] = 5
		}
		time.Sleep(time.Minute)
		assert.Equal(t, want, deliveries.Counts())
		warnings := s.Log.Lines("no retry middleware")
		require.Len(t, warnings, 1)
		for _, text := range []string{"warn ", `Handler "billing" has no retry middleware`, `queue "orders"`, "handler.AddMiddleware(rabbit.Middleware)"} {
			assert.Contains(t, warnings[0], text)
		}
	})
}

// TestWrongHandlers: the router's Run, and a subscriber, have the faults of a handler that only its topic shows.
func TestWrongHandlers(t *testing.T) {
	for name, row := range map[string]struct {
		change  func(*config.Config)
		topic   string
		options retry.Options
		want    []string
	}{
		"below the default": {options: retry.Options{Prefetch: 15},
			want: []string{"Prefetch is 15: it must be between Concurrency, 16, and 65535, or 0 (the default)"}},
		"far ahead": {options: retry.Options{Concurrency: 70_000, Prefetch: 65_536}, want: []string{
			"Concurrency is 70000: it must be between 0 (the default) and 65535", "Prefetch is 65536: it must be between 0 (the default) and 65535"}},
		"group of a queue": {options: retry.Options{Group: "mails"}, want: []string{`Group is "mails", but AMQP.Exchange.GenerateName returns no exchange`, "NewDurablePubSubConfig"}},
		"no group, no name": {change: testapp.FanOut,
			want: []string{"AMQP.Queue.GenerateName is nil, and there is no Group"}},
		"both at once": {options: retry.Options{Concurrency: -1}, topic: "orders.#",
			want: []string{"Concurrency is -1", "must not contain the words * or #"}},
		"too long and more": {options: retry.Options{Concurrency: -1}, topic: strings.Repeat("x", 255),
			want: []string{"Concurrency is -1", "bytes: AMQP allows 255"}},
		"pattern":        {topic: "orders.#", want: []string{"must not contain the words * or #"}},
		"name of a tier": {topic: "orders.dead", want: []string{"it has the name of a queue of the retry topology"}},
		"two topics, a queue": {change: func(c *config.Config) { c.AMQP.Queue.GenerateName = func(string) string { return "queue" } },
			want: []string{"has the same work queue as topic", `set a Group, or an AMQP.Queue.GenerateName with another name`}},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := testapp.Model(t, func(c *config.Config) {
				if row.change != nil {
					row.change(c)
				}
			})
			s := testapp.Connect(t, c)
			if name == "two topics, a queue" {
				_ = s.AddConsumerHandler(message.NewDefaultRouter(nil), "other", "other", process)
			}
			s.AddConsumerHandler(s.Router, "billing", cmp.Or(row.topic, "orders"), process, row.options)
			err := s.Router.Run(t.Context())
			require.Error(t, err)
			for _, text := range row.want {
				assert.ErrorContains(t, err, text)
			}
			subscriber, err := s.Subscriber("own", row.options)
			if err == nil { // options are refused at once, faults of a topic by Subscribe
				err = subscribes(t, subscriber, cmp.Or(row.topic, "orders"))
			}
			assert.ErrorContains(t, err, row.want[0])
			assert.Empty(t, b.Queues(), "nothing is declared")
		})
	}
	_, c := testapp.Model(t)
	_, err := testapp.Connect(t, c).Subscriber("")
	require.ErrorContains(t, err, "its name is empty")
}

// TestATopicWithoutANameIsRefused, also where a group gives its queue one, and with the other faults of the handler.
func TestATopicWithoutANameIsRefused(t *testing.T) {
	_, c := testapp.Model(t, testapp.FanOut)
	s := testapp.Connect(t, c)
	s.AddConsumerHandler(s.Router, "billing", "", process, retry.Options{Group: "mails", Concurrency: -1})
	s.AddConsumerHandler(s.Router, "mailing", "", process, retry.Options{Group: "mails"})
	own, err := s.Subscriber("own", retry.Options{Group: "mails"})
	require.NoError(t, err)
	err = s.Router.Run(t.Context())
	const empty = "its topic is empty: set the name of the topic that the handler reads"
	for _, text := range []string{`handler "billing": Concurrency is -1`, `handler "billing": ` + empty, `handler "mailing": ` + empty} {
		assert.ErrorContains(t, err, text)
	}
	assert.ErrorContains(t, subscribes(t, own, ""), empty)
}

// TestFaultsOfAllHandlers: Run has the faults of every handler, whichever the router subscribes first, and each line
// has the name of its handler. No handler consumes, not even one without a fault.
func TestFaultsOfAllHandlers(t *testing.T) {
	b, c := testapp.Model(t)
	c.AMQP.Publish.GenerateRoutingKey = nil
	s := testapp.Connect(t, c)
	var want []string
	for i := range 8 {
		name := fmt.Sprintf("wrong%d", i)
		want = append(want, fmt.Sprintf("handler %q: Concurrency is -1: it must be between 0 (the default) and 65535", name),
			fmt.Sprintf("handler %q: CloseTimeout is -1s: it must be 0 (the default) or more", name))
		s.AddConsumerHandler(s.Router, name, "orders", process, retry.Options{Concurrency: -1, CloseTimeout: -time.Second})
		s.AddConsumerHandler(s.Router, fmt.Sprintf("right%d", i), "orders", process)
	}
	s.AddHandler(s.Router, "onward", "orders", "invoices", message.PassthroughHandler)
	want = append(want, `handler "onward": AMQP.Publish.GenerateRoutingKey is nil: it must return the routing key of a topic's messages`)
	s.AddConsumerHandler(s.Router, "nil", "orders", nil)
	s.AddHandler(s.Router, "nil too", "orders", "orders", nil)
	const isNil = ": its function is nil: pass the function that handles its messages"
	want = append(want, `handler "nil"`+isNil, `handler "nil too"`+isNil, strings.Replace(want[len(want)-1], "onward", "nil too", 1))
	subscriber, err := s.Subscriber("own")
	require.NoError(t, err)

	err = s.Router.Run(t.Context())
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	_, lines[0], _ = strings.Cut(lines[0], ": ") // what the router writes before it
	assert.Equal(t, want, lines)
	require.ErrorContains(t, subscribes(t, subscriber, "orders"), want[0])
	assert.Empty(t, b.Queues(), "nothing is declared")
	assert.Empty(t, s.Health().Subscriptions)
	require.ErrorContains(t, s.Publisher().Publish("orders", testapp.Messages("1")...), "AMQP.Publish.GenerateRoutingKey is nil")
}

// TestAfterClose: everything has an error that names the reason.
func TestAfterClose(t *testing.T) {
	_, c := testapp.Model(t)
	s := testapp.Connect(t, c)
	s.AddConsumerHandler(s.Router, "before", "orders", process)
	before, err := s.Subscriber("before too")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())

	require.ErrorIs(t, s.Router.Run(t.Context()), retry.ErrClosed)
	require.ErrorIs(t, subscribes(t, before, "orders"), retry.ErrClosed)
	_, err = s.Subscriber("after")
	require.ErrorIs(t, err, retry.ErrClosed)
	router := message.NewDefaultRouter(nil)
	s.AddConsumerHandler(router, "after", "orders", process)
	require.ErrorIs(t, router.Run(t.Context()), retry.ErrClosed)
	var failed *failure.Error
	for range 2 {
		err = s.Publisher().Publish("orders", testapp.Messages("1")...)
		require.ErrorIs(t, err, retry.ErrClosed)
		require.ErrorAs(t, err, &failed)
	}
	require.ErrorContains(t, s.Health().Ready(), "the consuming connection is not open")
	for _, link := range s.Health().Links {
		require.Equal(t, retry.ErrClosed.Error(), link.LastError, link.Name)
		require.False(t, link.LastErrorAt.IsZero(), link.Name)
	}
}
