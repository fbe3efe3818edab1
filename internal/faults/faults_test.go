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
