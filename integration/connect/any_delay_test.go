package connect_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestDelayedMessages: a message that the app publishes with the metadata of components/delay comes to each consumer
// group when its delay is over, with no failure, and its first failure waits by the schedule.
func TestDelayedMessages(t *testing.T) {
	const delayed = 3 * time.Second
	for name, row := range map[string]struct {
		change func(*config.Config)
		groups []string
	}{
		"queue":                 {func(*config.Config) {}, []string{""}},
		"fan-out, shared tiers": {func(c *config.Config) { testapp.FanOut(c); c.Policy.TierGroup = "shop" }, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			testapp.OnModel(t, func(t *testing.T, _ *model.Broker, c config.Config) {
				s := testapp.Connect(t, c)
				calls := testapp.NewLedger()
				for _, group := range row.groups {
					s.AddConsumerHandler(s.Router, "handler "+group, "orders", func(msg *message.Message) error {
						failures := calls.Add(group+msg.UUID) - 1
						assert.Equal(t, failures, testapp.Failures(msg))
						if failures == 0 {
							return errDown
						}
						return nil
					}, retry.Options{Group: group})
				}
				s.Run()
				delays, err := delay.NewPublisher(s.Publisher(), delay.PublisherConfig{})
				require.NoError(t, err)
				published := time.Now()
				for uuid, by := range map[string]delay.Delay{"for": delay.For(delayed), "until": delay.Until(published.Add(delayed))} {
					msg := message.NewMessage(uuid, nil)
					msg.SetContext(delay.WithContext(t.Context(), by))
					require.NoError(t, delays.Publish("orders", msg))
				}
				time.Sleep(time.Minute)
				require.Equal(t, 2*len(row.groups), calls.Len())
				for key, times := range calls.Times() {
					require.Len(t, times, 2, key)
					assert.GreaterOrEqual(t, times[0].Sub(published), delayed, key)
					assert.GreaterOrEqual(t, times[1].Sub(times[0]), time.Second, key)
				}
			}, func(c *config.Config) { c.Policy.Schedule = backoff.Schedule{time.Second} }, row.change)
		})
	}
}
