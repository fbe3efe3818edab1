package connect_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// grouped makes all work queues share their tiers, with the ladder of a group.
func grouped(b *config.Config) {
	b.Policy.TierGroup, b.Policy.Schedule = b.Prefix+"_group", backoff.Schedule{2 * time.Second, 5 * time.Second}
}

// TestDelayedMessages: a message that the app publishes with the metadata of components/delay comes to each consumer
// group when its delay is over, with no failure, and its first failure waits by the schedule.
func TestDelayedMessages(t *testing.T) {
	t.Parallel()
	const delayed = 3 * time.Second
	for name, row := range map[string]struct {
		change []func(*config.Config)
		groups []string
	}{
		"queue":                     {nil, []string{""}},
		"queue of a group of tiers": {[]func(*config.Config){grouped}, []string{""}},
		"fan-out":                   {[]func(*config.Config){testapp.FanOut, grouped}, []string{"billing", "mailing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testapp.New(t, append(row.change,
				func(b *config.Config) { b.Policy.Schedule = backoff.Schedule{time.Second} })...)
			var mu sync.Mutex
			published, after := map[string]time.Time{}, map[string]time.Duration{}
			calls, done := testapp.NewLedger(), testapp.NewLedger()
			for _, group := range row.groups {
				s.AddConsumerHandler(s.Router, "handler "+group, s.Queue("orders"), func(msg *message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					if calls.Add(group+" "+msg.UUID) == 1 {
						after[group+" "+msg.UUID] = time.Since(published[msg.UUID])
						assert.Zero(t, testapp.Failures(msg))
						return errDown
					}
					assert.Equal(t, 1, testapp.Failures(msg))
					done.Add(group + " " + msg.UUID)
					return nil
				}, retry.Options{Group: group})
			}
			s.Run()
			delays, err := delay.NewPublisher(s.Publisher(), delay.PublisherConfig{AllowNoDelay: true})
			require.NoError(t, err)
			for uuid, by := range map[string]func() delay.Delay{
				"for": func() delay.Delay { return delay.For(delayed) }, "until": func() delay.Delay { return delay.Until(time.Now().Add(delayed)) },
			} {
				mu.Lock()
				published[uuid] = time.Now()
				mu.Unlock()
				msg := message.NewMessage(uuid, nil)
				msg.SetContext(delay.WithContext(t.Context(), by()))
				require.NoError(t, delays.Publish(s.Queue("orders"), msg))
			}
			done.Wait(t, 2*len(row.groups), soon)
			for _, group := range row.groups {
				for _, uuid := range []string{"for", "until"} {
					key := group + " " + uuid
					assert.GreaterOrEqual(t, after[key], broker.Least(delayed), key)
					assert.Equal(t, 2, calls.Counts()[key], key)
				}
			}
			assert.Empty(t, done.Twice())
		})
	}
}
