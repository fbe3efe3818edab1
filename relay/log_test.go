package relay_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestLogFieldsHaveTheNamesOfTheMiddleware: handler_name and destination, so that one search finds the lines of both.
func TestLogFieldsHaveTheNamesOfTheMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, tier := watermill.NewCaptureLogger(), &scripted{}
		a := newApp(t, backoff.Schedule{time.Second}, withTier(tier))
		a.publisher.fail = func(topic string, tries int) error {
			if topic == "retry.return.billing" && tries == 1 {
				return errDown
			}
			return nil
		}
		var err error
		policy := retry.Policy{Schedule: backoff.Schedule{time.Second}}
		a.tiers, err = relay.New(relay.Config{
			Publisher: a.publisher, Policy: policy,
			NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return tier, nil },
		}, logger)
		require.NoError(t, err)
		a.retry, err = retrymw.New(policy, a.tiers.Backend(), nil)
		require.NoError(t, err)
		a.handle("billing", ignore)
		a.run()
		known, foreign := waitingFor(t.Context(), 0), message.NewMessage("2", nil)
		for _, msg := range []*message.Message{known, foreign} {
			tier.send(msg)
			<-msg.Acked()
		}
		a.close()

		lines := map[string]watermill.LogFields{}
		for _, level := range logger.Captured() {
			for _, line := range level {
				lines[line.Msg] = line.Fields
				assert.NotContains(t, line.Fields, "handler", line.Msg)
			}
		}
		assert.Equal(t, "billing", lines["Cannot forward a message of a tier, holding the message"]["handler_name"])
		assert.Equal(t, "retry.dead.unknown", lines["Message on a tier has no failure record that names a handler, dead-lettering it"]["destination"])
		assert.Contains(t, []any{"retry.return.billing", "retry.dead.unknown"}, lines["Message of a tier forwarded"]["destination"])
	})
}
