package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func orderMessage(t *testing.T, o order) *message.Message {
	t.Helper()
	payload, err := json.Marshal(o)
	require.NoError(t, err)
	return message.NewMessage("1", payload)
}

// TestBill: orders fail while the provider is away, and an order without an amount fails at once and for ever.
func TestBill(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	bill := bill(listener.Addr().String())
	require.NoError(t, bill(orderMessage(t, order{Number: 1, Cents: 5})))

	var permanent interface{ Permanent() bool }
	err = bill(orderMessage(t, order{Number: 10}))
	require.ErrorContains(t, err, "order 10 has no amount")
	require.ErrorAs(t, err, &permanent)
	assert.True(t, permanent.Permanent())
	require.ErrorContains(t, bill(message.NewMessage("1", []byte("?"))), "not an order")

	require.NoError(t, listener.Close())
	require.ErrorContains(t, bill(orderMessage(t, order{Number: 3, Cents: 5})), "charge order 3")
}

func TestParse(t *testing.T) {
	t.Setenv("AMQP_URL", "amqp://from-env")
	var out bytes.Buffer
	opts, err := parse([]string{"-orders", "40"}, &out)
	require.NoError(t, err)
	assert.Equal(t, options{
		address: "127.0.0.1:9090", orders: 40, uri: "amqp://from-env",
	}, opts)
	for _, args := range [][]string{{"-orders", "-1"}, {"orders"}, {"-nothing"}} {
		_, err := parse(args, &out)
		assert.Error(t, err, args)
	}
	assert.NotContains(t, out.String(), "from-env")
}

func TestServeEnds(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out bytes.Buffer
	assert.NoError(t, serve(ctx, "127.0.0.1:0", &out))
}
