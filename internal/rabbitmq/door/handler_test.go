package door

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
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
