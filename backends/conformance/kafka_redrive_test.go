package conformance

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
)

// TestKafkaRedriveByHand: a redrive as in the example of kafkaretry.Letters ends where each letter dies again, and
// leaves those that have.
func TestKafkaRedriveByHand(t *testing.T) {
	t.Parallel()
	const orders = 300 // more than Browse reads at once
	k := startKafka(t, 1)
	app := k.app(time.Second).bills(func(*message.Message) error { return backoff.Permanent(errDown) })
	app.publish(ids(orders)...)
	dead := func(n int) { t.Helper(); wait.Until(t, func() bool { return k.stored(k.dead()) == n }, "letters") }
	dead(orders)
	store := k.letters()
	for range 2 {
		client, err := sarama.NewClient(k.brokers, sarama.NewConfig())
		require.NoError(t, err)
		end, err := client.GetOffset(k.dead(), 0, sarama.OffsetNewest)
		require.NoError(t, err)
		require.NoError(t, client.Close())
		redriven := 0
		for letter, err := range store.Browse(t.Context(), k.dead(), letters.Filter{}) {
			require.NoError(t, err)
			again := message.NewMessage(letter.ID, letter.Payload)
			again.Metadata = letter.Metadata
			require.NoError(t, app.Publisher().Publish(k.back(), again))
			redriven++
		}
		assert.Equal(t, orders, redriven)
		require.NoError(t, k.admin.DeleteRecords(k.dead(), map[int32]int64{0: end}))
		dead(orders)
	}
}
