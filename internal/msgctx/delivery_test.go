package msgctx_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

func TestSubscriptionOfAMessage(t *testing.T) {
	b := &msgctx.Subscription{}
	msg := message.NewMessage("1", nil)
	assert.Nil(t, msgctx.Lookup(msg))
	msg.SetContext(msgctx.NewContext(t.Context(), b))
	assert.Same(t, b, msgctx.Lookup(msg).Subscription)
	assert.False(t, b.Claimed())
	before := b.AwaitClaim()
	select {
	case <-before:
		assert.Fail(t, "no middleware has got a message")
	default:
	}
	b.Claim()
	b.Claim()
	assert.True(t, b.Claimed())
	<-before
	<-b.AwaitClaim()
	b = &msgctx.Subscription{}
	b.Claim()
	<-b.AwaitClaim()
}
