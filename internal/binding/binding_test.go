package binding_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/binding"
)

func TestBindingOfAMessage(t *testing.T) {
	byContext, byMark := &binding.Binding{}, &binding.Binding{}

	msg := message.NewMessage("1", nil)
	assert.Nil(t, binding.Of(msg))

	binding.Mark(msg, byMark)
	msg.SetContext(context.Background())
	assert.Same(t, byMark, binding.Of(msg), "another context does not change the mark")
	assert.Nil(t, binding.Of(message.NewMessage("1", nil)), "an equal message is another one")

	msg.SetContext(binding.NewContext(t.Context(), byContext))
	assert.Same(t, byContext, binding.Of(msg))
}

func TestClaim(t *testing.T) {
	b := &binding.Binding{}
	assert.False(t, b.Claimed())
	b.Claim()
	b.Claim()
	assert.True(t, b.Claimed())
}

func TestMarkedMessagesAreCollected(t *testing.T) {
	const messages = 1000
	before := binding.Marks()
	for range messages {
		binding.Mark(message.NewMessage("1", nil), &binding.Binding{})
	}
	require.Eventually(t, func() bool {
		runtime.GC()
		return binding.Marks() < before+messages/2
	}, time.Minute, time.Millisecond)
}
