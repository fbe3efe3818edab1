package binding_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/binding"
)

func TestBindingOfAMessage(t *testing.T) {
	b := &binding.Binding{}
	msg := message.NewMessage("1", nil)
	assert.Nil(t, binding.Lookup(msg))
	msg.SetContext(binding.NewContext(t.Context(), b))
	assert.Same(t, b, binding.Lookup(msg).Binding)
	assert.False(t, b.Claimed())
	b.Claim()
	b.Claim()
	assert.True(t, b.Claimed())
}
