package connect_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

// TestManyHandlersStartInAnAlarm: what they take ends the alarm. The broker answers no publish meanwhile, and each handler
// does not wait for that anew.
func TestManyHandlersStartInAnAlarm(t *testing.T) {
	const handlers = 100
	for name, group := range map[string]string{"tiers of each queue": "", "a group": "shop"} {
		t.Run(name, func(t *testing.T) {
			testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
				b.Block(true)
				defer b.Block(false)
				rabbit, err := config.Connect(c, nil)
				require.NoError(t, err)
				defer func() { require.NoError(t, rabbit.Close()) }()
				began := time.Now()
				for i := range handlers {
					s, err := rabbit.Subscriber(fmt.Sprint("handler ", i))
					require.NoError(t, err)
					_, err = s.Subscribe(t.Context(), fmt.Sprint("orders.", i))
					require.NoError(t, err)
				}
				assert.Less(t, time.Since(began), time.Minute)
			}, func(c *config.Config) { c.Policy.TierGroup = group })
		})
	}
}

func TestManyHandlersOfABuilderStartInAnAlarm(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		b.Block(true)
		defer b.Block(false)
		a := testapp.Build(t, c)
		s, err := amqp.NewSubscriber(a.Builder.SubscriberConfig(), a.Log)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		began := time.Now()
		for i := range 20 {
			require.NoError(t, s.SubscribeInitialize(fmt.Sprint("orders.", i)))
		}
		assert.Less(t, time.Since(began), time.Minute)
	})
}

// TestASlowBrokerIsProbedAgain: only an alarm makes the start skip what shows whether the user may publish.
func TestASlowBrokerIsProbedAgain(t *testing.T) {
	testapp.OnModel(t, func(t *testing.T, b *model.Broker, c config.Config) {
		s := testapp.Connect(t, c)
		slow := func(by time.Duration) {
			for number, name := range b.Connections() {
				if strings.HasPrefix(name, "watermill-retry publisher") {
					b.Slow(number, by, by)
				}
			}
		}
		subscribe := func(queue string) {
			subscriber, err := s.Subscriber(queue)
			require.NoError(t, err)
			_, err = subscriber.Subscribe(t.Context(), queue)
			require.NoError(t, err)
		}
		slow(4 * time.Second)
		subscribe("orders")
		require.NotContains(t, b.Trace(), `with "probe"`)
		slow(0)
		time.Sleep(10 * time.Second)
		subscribe("parcels")
		assert.Contains(t, b.Trace(), `with "probe"`)
	})
}
