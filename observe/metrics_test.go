package observe_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/observe"
)

// everything makes an app in which everything has happened.
func everything(t *testing.T) *app {
	t.Helper()
	a := newApp(t)
	now := time.Now()
	a.setHealth(middleware.Health{
		Links: []middleware.LinkHealth{{Name: "consuming", Connected: true}, {Name: "publishing", Blocked: true, Reconnects: 2}},
		Subscriptions: []middleware.SubscriptionHealth{{
			Name: handler, Topic: topic, Queue: topic, InFlight: 3, Concurrency: 16, Deliveries: 20, Redeliveries: 4, Reconnects: 1,
			Paused: []string{"failing"}, Holding: 2,
		}},
		Tiers: []middleware.TierHealth{{Queue: "retry.1s", Overdue: 5, Since: now}},
	})
	return a
}

func TestSmoke(t *testing.T) {
	a := everything(t)
	asked := make(chan struct{})
	a.waiting = func(ctx context.Context) ([]middleware.Waiting, error) {
		defer close(asked)
		return []middleware.Waiting{
			{Kind: middleware.WaitingTier, Queue: "retry.1s", Tier: backoff.Tier(time.Second), Messages: 7, NextDue: time.Now().Add(time.Hour)},
			{Kind: middleware.WaitingDead, Queue: "dead", Messages: 2, Oldest: time.Now().Add(-time.Hour)},
		}, nil
	}
	registry := register(t, observe.Config{}, a)
	ctx := from(topic, handler)
	a.deliver(newMessage(ctx), nil)
	a.deliver(newMessage(ctx), errDown, nil)
	a.deliver(newMessage(ctx), backoff.Permanent(errDown))
	a.observers.Published(middleware.Published{Topic: topic, Messages: 3, Result: middleware.PublishConfirmed, Took: time.Second})
	_ = scrape(t, registry)
	<-asked
	require.Eventually(t, func() bool { return strings.Contains(scrape(t, registry), "watermill_retry_waiting_age") }, soon, time.Millisecond)
	text := scrape(t, registry)
	fmt.Println(text)
	for _, m := range observe.Metrics() {
		assert.Contains(t, text, "# HELP "+strings.TrimSuffix(m.Prometheus, "_total")+" "+m.Description)
	}
}
