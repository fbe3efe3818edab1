package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

func TestNotConfirmedBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) { c.Wire.URI, c.ConfirmTimeout = uri, 300*time.Millisecond })
	require.NoError(t, p.Publish(topology.queue, newMessage("before")))
	defer hold(t, proxy, "downstream")()

	begin := time.Now()
	err := p.Publish(topology.queue, newMessage("unknown"))
	asPublishError(t, err, publish.ErrNotConfirmed)
	assert.InDelta(t, 0.3, time.Since(begin).Seconds(), 0.25)
	assert.NotErrorIs(t, err, publish.ErrStalled)
	require.Equal(t, map[string]int{"before": 1, "unknown": 1}, topology.content(t))
	proxy.Stop()
}

func TestMessageContextEndsTheWait(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) { c.Wire.URI = uri })

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	msg := newMessage("cancelled before")
	msg.SetContext(ctx)
	require.ErrorIs(t, p.Publish(topology.queue, msg), context.Canceled)

	defer hold(t, proxy, "downstream")()
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	msg = newMessage("cancelled in flight")
	msg.SetContext(ctx)
	result := make(chan error, 1)
	go func() { result <- p.Publish(topology.queue, msg) }()
	client := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		queue, err := client.QueueDeclarePassive(topology.queue, true, false, false, false, nil)
		return err == nil && queue.Messages == 1
	}, "the message is in the queue")
	cancel()
	select {
	case err := <-result:
		require.ErrorIs(t, err, context.Canceled)
		asPublishError(t, err, publish.ErrNotConfirmed)
	case <-time.After(soon):
		t.Fatal("Publish did not return after its context was cancelled")
	}

	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	msg = newMessage("deadline")
	msg.SetContext(ctx)
	err := p.Publish(topology.queue, msg)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	asPublishError(t, err, publish.ErrNotConfirmed)
	require.Equal(t, map[string]int{"cancelled in flight": 1, "deadline": 1}, topology.content(t))
	proxy.Stop()
}

func TestLostConnection(t *testing.T) {
	t.Parallel()
	const callers = 32
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) { c.Wire.URI = uri })
	require.NoError(t, p.Publish(topology.queue, newMessage("before")))

	hold(t, proxy, "downstream") // all messages must be in flight
	results := make(chan error, callers)
	for i := range callers {
		go func() { results <- p.Publish(topology.queue, newMessage(fmt.Sprint("in flight ", i))) }()
	}
	client := broker.Channel(t)
	broker.Eventually(t, soon, func() bool {
		queue, err := client.QueueDeclarePassive(topology.queue, true, false, false, false, nil)
		return err == nil && queue.Messages == callers+1
	}, "all messages are in the queue")
	proxy.Stop()
	begin := time.Now()
	for range callers {
		asPublishError(t, broker.Receive(t, results, "Publish returns"), publish.ErrNotConnected)
	}
	assert.Less(t, time.Since(begin), time.Second, "promptly")

	broker.Eventually(t, soon, func() bool {
		begin := time.Now()
		err := p.Publish(topology.queue, newMessage("away"))
		assert.Less(t, time.Since(begin), time.Second, "at once")
		asPublishError(t, err, publish.ErrNotConnected)
		var dial *net.OpError
		return errors.As(err, &dial) && dial.Op == "dial"
	}, "the error contains why it cannot reconnect")

	require.NoError(t, proxy.Toxics.RemoveToxic(t.Context(), "hold"))
	require.NoError(t, proxy.Start())
	broker.Eventually(t, soon, func() bool { return p.Publish(topology.queue, newMessage("after")) == nil }, "it reconnects")
	content := topology.content(t)
	assert.Equal(t, 1, content["after"])
	assert.Zero(t, content["away"])
	assert.Len(t, content, callers+2)
}

func TestPeerThatStopsReading(t *testing.T) {
	t.Parallel()
	const callers = 32
	topology := declare(t, nil)
	proxy, uri := broker.Proxy(t)
	p := topology.open(t, func(c *settings) {
		c.Wire.URI, c.ConfirmTimeout, c.Wire.WriteTimeout = uri, time.Second, 3*time.Second
	})
	require.NoError(t, p.Publish(topology.queue, newMessage("before")))
	free := hold(t, proxy, "upstream")

	var group sync.WaitGroup
	var mu sync.Mutex
	kinds := map[error]int{}
	body := make([]byte, 1<<20)
	for i := range callers {
		group.Go(func() {
			begin := time.Now()
			err := p.Publish(topology.queue, message.NewMessage(fmt.Sprint("stalled ", i), body))
			assert.InDelta(t, 1, time.Since(begin).Seconds(), 0.6)
			for _, kind := range []error{publish.ErrStalled, publish.ErrNotConfirmed} {
				if errors.Is(err, kind) {
					mu.Lock()
					kinds[kind]++
					mu.Unlock()
				}
			}
		})
	}
	group.Wait()
	assert.Equal(t, callers, kinds[publish.ErrStalled]+kinds[publish.ErrNotConfirmed], "%v", kinds)
	assert.NotZero(t, kinds[publish.ErrStalled])

	broker.Eventually(t, soon, func() bool {
		return errors.Is(p.Publish(topology.queue, newMessage("later")), publish.ErrNotConnected)
	}, "the connection ends at the write deadline")
	free()
	broker.Eventually(t, soon, func() bool { return p.Publish(topology.queue, newMessage("after")) == nil }, "it recovers")
	assert.Equal(t, 1, topology.content(t)["after"])
}

func TestAloneBlockedConnection(t *testing.T) {
	broker.Alone(t)
	watermark := func(value string) { broker.Ctl(t, "set_vm_memory_high_watermark", value) }
	topology := declare(t, nil)
	p := topology.open(t, func(c *settings) { c.ConfirmTimeout = 2 * time.Second })
	require.NoError(t, p.Publish(topology.queue, newMessage("before")))

	t.Cleanup(func() { watermark("0.6") })
	watermark("0.0001")
	broker.Eventually(t, soon, func() bool { // the alarm is not in effect at once: until then messages are confirmed
		err := p.Publish(topology.queue, newMessage("in flight"))
		if err == nil {
			return false
		}
		asPublishError(t, err, publish.ErrBlocked)
		return true
	}, "the connection is blocked")
	begin := time.Now()
	asPublishError(t, p.Publish(topology.queue, newMessage("blocked")), publish.ErrBlocked)
	assert.Less(t, time.Since(begin), 500*time.Millisecond, "at once")

	watermark("0.6")
	broker.Eventually(t, soon, func() bool { return p.Publish(topology.queue, newMessage("after")) == nil }, "it resumes")
	content := topology.content(t)
	assert.Equal(t, 1, content["before"])
	assert.Equal(t, 1, content["after"])
	assert.Zero(t, content["blocked"])
}

func TestNewReportsConnectionErrors(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()

	const canary = "c4nary-s3cret"
	for name, uri := range map[string]string{
		"wrong password":  broker.WithUser(t, "guest", canary),
		"unknown user":    broker.WithUser(t, "unknown", canary),
		"unreachable":     "amqp://guest:" + canary + "@" + address + "/",
		"does not answer": "amqp://guest:" + canary + "@" + silent.Addr().String() + "/?connection_timeout=300",
		"no virtual host": strings.TrimSuffix(broker.URL(t), "/") + "/" + "missing",
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			p, err := publisher.Open(publisher.Config{Wire: wire.Config{URI: uri}}, nil)
			require.Error(t, err)
			require.Nil(t, p)
			assert.Less(t, time.Since(begin), 25*time.Second, "amqp091-go's default is 30 s")
			assert.NotContains(t, fmt.Sprintf("%v %+v %#v", err, err, err), canary)
			assert.Contains(t, err.Error(), "127.0.0.1")
		})
	}
}

// The publisher reconnects also after an operator has closed its connection.
func TestBrokerClosesTheConnection(t *testing.T) {
	t.Parallel()
	topology := declare(t, nil)
	name := broker.Name(t, "named")
	p := topology.open(t, func(c *settings) {
		c.Wire.AMQP = &amqp091.Config{Properties: amqp091.Table{"connection_name": name}}
	})
	management := broker.Management(t)
	broker.Eventually(t, soon, func() bool {
		connections, err := management.ListConnections()
		if err != nil {
			return false
		}
		for _, connection := range connections {
			if connection.ClientProperties["connection_name"] == name {
				_, err := management.CloseConnection(connection.Name)
				return err == nil
			}
		}
		return false
	}, "an operator closes the connection")
	broker.Eventually(t, soon, func() bool { return p.Publish(topology.queue, newMessage("after")) == nil }, "it reconnects")
}
