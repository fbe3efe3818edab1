package deadletter_test

import (
	"fmt"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
)

// Up to RabbitMQ 4.2 the broker closes a channel that has letters for longer than 30 minutes. A canary that is watched
// for longer would be watched for ever.
func TestALostConnectionDoesNotProlongTheWatch(t *testing.T) {
	onBoard(t, func(t *testing.T, b board) {
		const count, watched = 30, 20 * time.Minute
		quorum := amqp091.Table{"x-queue-type": "quorum"}
		b.broker.DeclareQueue("orders", quorum)
		b.broker.DeclareQueue("orders.dead", quorum)
		for i := range count {
			b.broker.Publish("", "orders.dead", amqp091.Publishing{
				Headers: amqp091.Table{"_watermill_message_uuid": fmt.Sprint(i)}})
		}
		began := time.Now()
		ends, waited, cut := map[time.Time]bool{}, false, false
		summary, err := b.store.Redrive(t.Context(), "orders.dead", letters.Redrive{
			To: "orders", Canary: 10, CanaryWait: watched, Progress: func(p letters.Progress) {
				waited = waited || p.Phase == letters.Waiting
				if p.Phase != letters.Watching {
					return
				}
				ends[p.Until] = true
				if !cut {
					cut = true
					for number := range b.broker.Connections() {
						b.broker.Disturb(number, model.Cut)
					}
				}
			},
		})
		require.NoError(t, err)
		assert.Equal(t, letters.Summary{Total: count, Done: count}, summary)
		assert.True(t, waited, "the connection was lost")
		assert.Len(t, ends, 1)
		assert.Less(t, time.Since(began), watched+time.Minute)
	})
}
