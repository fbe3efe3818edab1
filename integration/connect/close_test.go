package connect_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestCloseWithMessagesInFlight: those in flight end as they end: processed, retried or with messages of their own. No
// message is lost, and none is handled twice.
func TestCloseWithMessagesInFlight(t *testing.T) {
	t.Parallel()
	const count, concurrency, prefetch = 40, 6, 20
	b := testapp.Config(t)
	b.AMQP.Consume.Qos.PrefetchCount = prefetch
	first := testapp.Connect(t, b)
	var (
		processed, produced = testapp.NewLedger(), testapp.NewLedger()
		entered             = testapp.NewLedger()
		leave               = make(chan struct{})
	)
	bill := func(msg *message.Message) ([]*message.Message, error) {
		if testapp.Failures(msg) == 0 && msg.UUID[4]%2 == 0 {
			return nil, errDown // its copy is published during Close
		}
		processed.Add(msg.UUID)
		return []*message.Message{message.NewMessage("invoice "+msg.UUID, nil)}, nil
	}
	first.AddHandler(first.Router, "billing", first.Queue("orders"), first.Queue("invoices"),
		func(msg *message.Message) ([]*message.Message, error) {
			entered.Add(msg.UUID)
			<-leave
			return bill(msg)
		}, retry.Options{Concurrency: concurrency, CloseTimeout: 2 * soon})
	initializer, err := first.Subscriber("invoices")
	require.NoError(t, err)
	require.NoError(t, initializer.(message.SubscribeInitializer).SubscribeInitialize(first.Queue("invoices")))
	done := make(chan error, 1)
	go func() { done <- first.Router.Run(context.Background()) }()
	broker.Receive(t, first.Router.Running(), "the router runs")
	first.Publish(first.Queue("orders"), testapp.IDs(count)...)
	entered.Wait(t, concurrency, soon)
	testapp.Eventually(t, func() bool { return testapp.Depth(t, first.Queue("orders")) == count-prefetch },
		"more messages are fetched")

	var closes sync.WaitGroup
	for range 2 {
		closes.Go(func() { assert.NoError(t, first.Close()) })
	}
	testapp.Eventually(t, func() bool { return testapp.Depth(t, first.Queue("orders")) == count-concurrency },
		"what was fetched and not handed out is given back")
	_, err = first.Subscriber("late")
	require.ErrorIs(t, err, retry.ErrClosed)
	close(leave)
	closes.Wait()
	require.NoError(t, broker.Receive(t, done, "Run returns"), "the router ends with its last subscription")
	assert.Equal(t, concurrency, entered.Len(), "nothing is handed out after the beginning of Close")
	assert.Zero(t, first.Log.Count("Cannot publish"), "the publishers are closed last")

	second := testapp.Connect(t, b)
	second.AddHandler(second.Router, "billing", second.Queue("orders"), second.Queue("invoices"), bill)
	second.AddConsumerHandler(second.Router, "mail", second.Queue("invoices"),
		produced.Handle)
	second.Run()
	processed.Wait(t, count, soon)
	produced.Wait(t, count, soon)
	assert.Empty(t, processed.Twice())
	assert.Empty(t, produced.Twice())
}

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
	var failed *publish.Error
	require.ErrorAs(t, s.Publisher().Publish(s.Queue("orders"), testapp.Messages("1")...), &failed)
	require.ErrorContains(t, s.Health().Ready(), "the consuming connection is not open")
	for _, link := range s.Health().Links {
		require.Equal(t, retry.ErrClosed.Error(), link.LastError, link.Name)
		require.False(t, link.LastErrorAt.IsZero(), link.Name)
	}
}

// TestHealth before, in and after an outage of the network. The logs name the connection that they are about.
func TestHealth(t *testing.T) {
	t.Parallel()
	proxy, uri := broker.Proxy(t)
	s := testapp.New(t, func(b *config.Config) {
		b.AMQP = amqp.NewDurableQueueConfig(uri)
		b.AMQP.Connection.Reconnect = amqp.DefaultReconnectConfig()
		b.AMQP.Connection.Reconnect.BackoffInitialInterval = 50 * time.Millisecond
		b.AMQP.Connection.Reconnect.BackoffMaxInterval = time.Second
	})
	got := testapp.NewLedger()
	s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
		if testapp.Failures(msg) == 0 {
			return errDown
		}
		got.Add(msg.UUID)
		return nil
	})
	require.NoError(t, s.Health().Ready(), "there is no subscription yet")
	s.Run()
	h := s.Health()
	require.NoError(t, h.Ready())
	require.Len(t, h.Links, 2)
	assert.Equal(t, "consuming", h.Links[0].Name)
	assert.Equal(t, "publishing", h.Links[1].Name)
	require.Len(t, h.Subscriptions, 1)
	assert.Equal(t, "billing", h.Subscriptions[0].Name)
	assert.Equal(t, s.Queue("orders"), h.Subscriptions[0].Queue)
	require.Empty(t, h.Links[0].LastError)
	s.Publish(s.Queue("orders"), "before")
	got.Wait(t, 1, soon)

	proxy.Stop()
	testapp.Eventually(t, func() bool {
		h := s.Health()
		return !h.Links[0].Connected && !h.Links[1].Connected && !h.Subscriptions[0].Consuming
	}, "it is not ready")
	err := s.Health().Ready()
	for _, text := range []string{"the consuming connection is not open", "the publishing connection is not open", `handler "billing" does not consume`} {
		require.ErrorContains(t, err, text)
	}
	require.ErrorIs(t, s.Publisher().Publish(s.Queue("orders"), testapp.Messages("lost")...), publish.ErrNotConnected)
	logged := func(text string) {
		t.Helper()
		for _, connection := range []string{"consuming", "publishing"} {
			testapp.Eventually(t, func() bool {
				return slices.ContainsFunc(s.Log.Lines(text), func(line string) bool { return strings.Contains(line, "connection:"+connection) })
			}, "%s, of the connection %s", text, connection)
		}
	}
	logged("Connection lost, reconnecting")
	logged("Cannot reconnect")

	require.NoError(t, proxy.Start())
	testapp.Eventually(t, func() bool { return s.Health().Ready() == nil }, "it is ready again")
	logged("Connected again")
	h = s.Health()
	require.NotEmpty(t, h.Links[0].LastError)
	require.NotEmpty(t, h.Links[1].LastError)
	s.Publish(s.Queue("orders"), "after")
	got.Wait(t, 2, soon)
	assert.Contains(t, got.Counts(), "after")
}
