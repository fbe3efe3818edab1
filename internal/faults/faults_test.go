package faults_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/faults"
)

func TestFaultsOfAllHandlersAreJoined(t *testing.T) {
	t.Parallel()
	var all faults.Handlers
	require.NoError(t, all.All())
	all.Add(faults.OfHandler("billing", errors.Join(io.EOF, errors.New("b"))))
	all.Add(faults.OfHandler("mailing", io.ErrUnexpectedEOF))
	require.EqualError(t, all.All(), "handler \"billing\": EOF\nhandler \"billing\": b\nhandler \"mailing\": unexpected EOF")
	assert.ErrorIs(t, all.All(), io.EOF)
	assert.ErrorIs(t, all.All(), io.ErrUnexpectedEOF)
}

// TestEachLineHasItsPath: also the second fault of a struct within a struct.
func TestEachLineHasItsPath(t *testing.T) {
	t.Parallel()
	breaker := errors.Join(errors.New("Ratio is 2"), io.EOF)
	policy := errors.Join(faults.Of("Schedule", errors.New("no retries")), faults.In("Breaker", breaker))
	err := faults.Of("invalid Config", faults.In("Policy", policy))
	require.EqualError(t, err, "invalid Config: Policy.Schedule: no retries\ninvalid Config: Policy.Breaker.Ratio is 2\ninvalid Config: Policy.Breaker.EOF")
	assert.ErrorIs(t, err, io.EOF)
	assert.NoError(t, faults.Of("Policy", nil))
	assert.NoError(t, faults.In("Policy", errors.Join()))
	assert.PanicsWithValue(t, `handler "billing": its router is nil: pass the router that message.NewRouter has returned`,
		func() { faults.CheckRouter("billing", true) })
	assert.NotPanics(t, func() { faults.CheckRouter("billing", false) })
}
