package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest/rabbit"
)

// A tenant that pauses keeps its messages in their partitions and in their order.
func TestATenantWaitsInPlaceWithPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := rabbit.New(t)
		own := amqp.NewDurableQueueConfig(rabbit.URI)
		own.Connection.AmqpConfig = broker.AmqpConfig()
		conn, err := config.Connect(config.Config{AMQP: own, Policy: retry.Policy{
			Schedule: backoff.Constant(time.Second, 100), Breaker: &retry.Breaker{Key: tenantOf},
		}}, nil)
		require.NoError(t, err)
		var mu sync.Mutex
		healthy := time.Now().Add(5 * time.Minute)
		handled := map[string][]string{} // by tenant and order
		tried := 0                       // of the sick tenant, when it was healthy again
		deliver := func(msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if tenantOf(msg) == sickTenant && time.Now().Before(healthy) {
				tried++
				return errors.New("no answer")
			}
			of := tenantOf(msg) + "/" + msg.Metadata.Get("order")
			handled[of] = append(handled[of], msg.UUID)
			return nil
		}
		router := message.NewDefaultRouter(watermill.NopLogger{})
		conn.AddConsumerHandler(router, "deliver", "webhooks", deliver, retry.Options{Order: retry.Order{
			Key: func(msg *message.Message) string { return tenantOf(msg) + "/" + msg.Metadata.Get("order") }, Partitions: 2,
		}})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		t.Cleanup(func() {
			cancel()
			assert.NoError(t, errors.Join(<-ended, conn.Close()))
		})

		const each = 20
		want := map[string][]string{}
		for i := range each {
			for tenant := range 10 {
				for order := range 3 {
					of := fmt.Sprintf("%d/%d", tenant, order)
					msg := message.NewMessage(fmt.Sprintf("%s-%d", of, i), nil)
					msg.Metadata.Set("tenant", fmt.Sprint(tenant))
					msg.Metadata.Set("order", fmt.Sprint(order))
					want[of] = append(want[of], msg.UUID)
					require.NoError(t, conn.Publisher().Publish("webhooks", msg))
				}
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		mu.Lock()
		for of, all := range want {
			if !strings.HasPrefix(of, sickTenant+"/") {
				assert.Equal(t, all, handled[of], "the others go on")
			}
		}
		mu.Unlock()
		assert.Equal(t, "failing", conn.Health().Subscriptions[0].Keys[sickTenant].Paused)
		for _, queue := range broker.Queues() {
			assert.NotContains(t, queue, ".retry.", "nothing moves to a tier")
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, want, handled, "all, in their order")
		assert.Less(t, tried, 40, "probes")
	})
}
