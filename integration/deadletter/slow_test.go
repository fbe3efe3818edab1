package deadletter_test

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
)

// TestASlowRedriveSendsNoLetterTwice: from RabbitMQ 4.3 on a quorum queue takes letters back from a consumer that has
// them for longer than the timeout of the queue, and accepts their acknowledgement without an effect.
func TestASlowRedriveSendsNoLetterTwice(t *testing.T) {
	t.Parallel()
	const count = 12
	a := testapp.New(t)
	queue, parked := a.Queue("orders"), a.Queue("parked")
	a.Declare(queue)
	declare(t, parked, amqp091.Table{"x-queue-type": "quorum", "x-consumer-timeout": int64(1000)})
	testapp.Send(t, "", parked, dead(queue, count)...)
	store := open(t, broker.URL(t), a.Name)
	summary, err := store.Redrive(t.Context(), parked, letters.Redrive{To: queue, Rate: 3, Limit: count - 1})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: count - 1, Unseen: 1}, summary)
	assert.Equal(t, 1, testapp.Depth(t, parked))
	assert.Equal(t, count-1, testapp.Depth(t, queue))
}
