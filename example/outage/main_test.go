package main

import (
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
