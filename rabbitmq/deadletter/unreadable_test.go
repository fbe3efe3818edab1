package deadletter

import (
	"fmt"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// TestALetterIsNotBlamedForItsQueue: the broker has the same code for a message that it cannot deliver, and for a queue
// without a leader. The second one ends by itself, and its letters are good.
func TestALetterIsNotBlamedForItsQueue(t *testing.T) {
	t.Parallel()
	ofBroker := func(text string) error {
		return &amqp091.Error{Code: amqp091.InternalError, Reason: text, Server: true}
	}
	assert.ErrorIs(t, ofLetter(fmt.Errorf("a frame: %w", wire.ErrUnreadable)), wire.ErrUnreadable)
	assert.ErrorContains(t, ofLetter(ofBroker("INTERNAL_ERROR")), "the broker cannot deliver it")
	for _, cause := range []string{"noproc", "timeout"} {
		assert.NoError(t, ofLetter(ofBroker(
			"INTERNAL_ERROR - Cannot get a message from queue 'queue 'orders.dead' in vhost '/'': "+cause)))
	}
	assert.NoError(t, ofLetter(&amqp091.Error{Code: amqp091.ConnectionForced, Server: true}))
	assert.NoError(t, ofLetter(wire.ErrLost))
}
