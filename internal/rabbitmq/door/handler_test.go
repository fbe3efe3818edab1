package door

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestThePrefetchOfAHandler(t *testing.T) {
	t.Parallel()
	key := func(*message.Message) string { return "" }
	for name, row := range map[string]struct {
		options retry.Options
		app     int
		want    int
	}{
		"default":                      {retry.Options{Concurrency: 16}, 0, 32},
		"one at a time":                {retry.Options{Concurrency: 1}, 0, 1},
		"one at a time, with a key":    {retry.Options{Concurrency: 1, Order: retry.Order{Key: key}}, 0, 1},
		"with a key":                   {retry.Options{Concurrency: 4, Order: retry.Order{Key: key}}, 0, 64},
		"most":                         {retry.Options{Concurrency: 40_000}, 0, 65_535},
		"most, with a key":             {retry.Options{Concurrency: 5_000, Order: retry.Order{Key: key}}, 0, 65_535},
		"the app's is more":            {retry.Options{Concurrency: 16}, 50, 50},
		"the app's is less":            {retry.Options{Concurrency: 16}, 20, 32},
		"the app's, and one at a time": {retry.Options{Concurrency: 1}, 20, 20},
		"own":                          {retry.Options{Concurrency: 16, Prefetch: 16}, 0, 16},
		"own, below the app's":         {retry.Options{Concurrency: 16, Prefetch: 20}, 50, 20},
		"own, with a key":              {retry.Options{Concurrency: 16, Prefetch: 20, Order: retry.Order{Key: key}}, 0, 20},
	} {
		var own app.Config
		own.Consume.PrefetchCount = row.app
		h := &handlerSubscriber{options: row.options, core: &core{app: own}}
		assert.Equal(t, row.want, h.prefetch(), name)
	}
}

// TestDifferentSchedulesOfOneQueueAreNamedAtTheStart: which of the handlers retries a message is chance.
func TestDifferentSchedulesOfOneQueueAreNamedAtTheStart(t *testing.T) {
	t.Parallel()
	log := watermill.NewCaptureLogger()
	name := func(topic string) string { return topic }
	c := &core{app: app.Config{QueueName: name, ExchangeName: func(string) string { return "" }}, prefix: naming.Default, queues: &queues{}}
	add := func(handler, topic string, schedule backoff.Schedule) int {
		h := &handlerSubscriber{name: handler, core: c, logger: log, options: retry.Options{Policy: &retry.Policy{Schedule: schedule}}}
		require.NoError(t, h.add(topic))
		require.NoError(t, h.add(topic), "once more when it subscribes")
		lines := 0
		for _, level := range log.Captured() {
			for _, line := range level {
				if strings.Contains(line.Msg, "Options.Policy.Schedule is not that of another handler") {
					lines++
					assert.Equal(t, watermill.LogFields{
						"queue": "orders", "schedule": "1m", "other_handler": "first", "other_schedule": "1s 5s",
					}, line.Fields)
				}
			}
		}
		return lines
	}
	schedule := backoff.Schedule{time.Second, 5 * time.Second}
	assert.Zero(t, add("first", "orders", schedule))
	assert.Zero(t, add("second", "orders", slices.Clone(schedule)))
	assert.Zero(t, add("other", "invoices", backoff.Schedule{time.Minute}), "another work queue")
	assert.Equal(t, 1, add("third", "orders", backoff.Schedule{time.Minute}))
	assert.Equal(t, 1, add("first", "orders", backoff.Schedule{time.Hour}), "it is added again, with another schedule")
}
