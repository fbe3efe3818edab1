package publisher_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// BenchmarkPublish publishes persistent messages of 512 bytes to a durable classic queue, waiting for each confirm.
func BenchmarkPublish(b *testing.B) {
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			queue := broker.Name(b, "bench")
			channel := broker.Channel(b)
			_, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{"x-queue-type": "classic"})
			require.NoError(b, err)
			b.Cleanup(func() { _, _ = channel.QueueDelete(queue, false, false, false) })
			p, err := publisher.Open(publisher.Config{Wire: wire.Config{URI: broker.URL(b)}}, nil)
			require.NoError(b, err)
			defer p.Close()
			payload := make([]byte, 512)

			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var group sync.WaitGroup
			for range callers {
				group.Go(func() {
					for left.Add(-1) >= 0 {
						publishing := marshal(message.NewMessage("6ba7b810-9dad-11d1-80b4-00c04fd430c8", payload))
						err := p.SendOne(publisher.Message{Context: b.Context(), RoutingKey: queue, Publishing: publishing})
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
