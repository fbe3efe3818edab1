package binding_test

import (
	"context"
	"testing"

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

func TestMarksAreRemoved(t *testing.T) {
	const messages = 1000
	before, b := binding.Marks(), &binding.Binding{}
	most := func(settle func(*message.Message), inFlight int) int {
		var open []*message.Message
		most := 0
		for range messages {
			msg := message.NewMessage("1", nil)
			binding.Mark(msg, b)
			if open = append(open, msg); len(open) > inFlight {
				settle(open[0])
				open = open[1:]
			}
			for _, msg := range open {
				require.Same(t, b, binding.Of(msg))
			}
			most = max(most, binding.Marks()-before)
		}
		for _, msg := range open {
			settle(msg)
		}
		return most
	}
	ack, nack := func(msg *message.Message) { msg.Ack() }, func(msg *message.Message) { msg.Nack() }
	assert.LessOrEqual(t, most(ack, 0), 1)
	assert.LessOrEqual(t, most(nack, 0), 1)
	assert.LessOrEqual(t, most(ack, 10), 2*11+1)

	for range messages {
		binding.Mark(message.NewMessage("1", nil), b)
	}
	assert.Equal(t, before+messages, binding.Marks(), "messages that were not settled")
	b.Forget()
	assert.Equal(t, before, binding.Marks())
}

func BenchmarkMark(b *testing.B) {
	from := &binding.Binding{}
	msg := message.NewMessage("1", nil)
	for _, marked := range []bool{false, true} {
		b.Run(map[bool]string{false: "message", true: "message and mark"}[marked], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				msg = message.NewMessage("1", nil)
				if marked {
					binding.Mark(msg, from)
					_ = binding.Of(msg)
				}
				msg.Ack()
			}
		})
	}
}
