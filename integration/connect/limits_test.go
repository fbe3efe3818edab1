package connect_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ask"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestAProcessThatWasAwayHasTheLimitsOfKeys: a command goes to those that are connected. One that comes back asks the
// others, and tells them what they have missed.
func TestAProcessThatWasAwayHasTheLimitsOfKeys(t *testing.T) {
	t.Parallel()
	c := testapp.Config(t)
	c.Policy.Breaker = &retry.Breaker{Key: func(msg *message.Message) string { return msg.Metadata.Get("tenant") }}
	begin := func() (*testapp.App, *broker.Network) {
		own := c
		var proxy *broker.Network
		proxy, own.AMQP.Connection.AmqpURI = broker.Proxy(t)
		a := testapp.Connect(t, own)
		a.Handle(a.Queue("tenants"), 1, func(*message.Message) error { return nil })
		a.Run()
		return a, proxy
	}
	connection := broker.Connect(t)
	says := func(key string, calls, processes int) {
		t.Helper()
		request := command.Request{Do: command.Limit, Key: key, Calls: calls, Lasts: time.Hour, At: time.Now().UnixNano()}
		testapp.Eventually(t, func() bool { // a process that has just begun may not have the queue of its commands yet
			answered := 0
			channel, err := connection.Channel()
			if err == nil {
				err = errors.Join(ask.All(t.Context(), channel, naming.Prefix(c.Prefix).OrderControl(), request, processes,
					5*time.Second, func(command.Answer) { answered++ }), channel.Close())
			}
			return err == nil && answered == processes
		}, "%d processes answer", processes)
	}
	has := func(a *testapp.App, want ...string) {
		t.Helper()
		testapp.Eventually(t, func() bool {
			keys := a.Health().Subscriptions[0].Keys
			return slices.Equal(slices.Sorted(maps.Keys(keys)), want)
		}, "the limited keys are %v", want)
	}
	leaves := func(a *testapp.App, from *broker.Network) {
		t.Helper()
		from.Stop()
		testapp.Eventually(t, func() bool { return a.Health().Ready() != nil }, "it has noticed")
	}
	returns := func(a *testapp.App, to *broker.Network) {
		t.Helper()
		require.NoError(t, to.Start())
		testapp.Eventually(t, func() bool { return a.Health().Ready() == nil }, "it is back")
	}
	a, ofA := begin()
	b, ofB := begin()
	says("7", 0, 2)
	has(a, "7")
	has(b, "7")

	leaves(b, ofB)
	says("7", command.NoLimit, 1)
	returns(b, ofB)
	has(b)

	leaves(b, ofB)
	says("8", 2, 1)
	has(a, "8")
	leaves(a, ofA)
	returns(b, ofB)
	returns(a, ofA)
	has(b, "8")
}
