package observe_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

// everything makes each metric of an app have a value.
func everything(t *testing.T, o retry.Observer, collect func()) {
	t.Helper()
	a := newApp(t)
	a.waiting = func(context.Context) ([]backend.Waiting, error) {
		return []backend.Waiting{
			{Kind: backend.WaitingTier, Queue: "retry.1s", Tier: backoff.Tier(time.Second), Messages: 7, NextDue: time.Now().Add(time.Hour)},
			{Kind: backend.WaitingDead, Queue: "dead", Messages: 2},
		}, nil
	}
	a.health = func() retry.Health {
		return retry.Health{
			Links: []retry.LinkHealth{{Name: "consuming", Connected: true}, {Name: "publishing", Blocked: true, Reconnects: 2}},
			Subscriptions: []retry.SubscriptionHealth{{
				Name: handler, Topic: topic, Queue: topic, InFlight: 3, Calls: 2, Concurrency: 16, Prefetch: 32, Deliveries: 20, Redeliveries: 4, Reconnects: 1,
				Paused: []string{"failing"}, Holding: 2, OrderWaiting: 3, Blocked: make([]string, 1), Keys: map[string]retry.KeyHealth{"7": {Paused: "failing", Parked: 2}},
			}},
			Tiers: []retry.TierHealth{{Queue: "retry.1s", Overdue: 5, Since: time.Now()}},
		}
	}
	a.observe(o)
	a.deliver(newMessage(from(topic, handler)), errDown, nil)
	a.deliver(newMessage(from(topic, handler)), backoff.Permanent(errDown))
	a.observers.Published(backend.Published{Topic: topic, Messages: 3, Result: backend.PublishConfirmed, Took: time.Second})
	collect() // asks what waits
	synctest.Wait()
	require.Empty(t, a.logged.errors())
}

// TestAScrapeHasTheMetricsOfTheList: each with its name, kind, help, labels and buckets, and no others.
func TestAScrapeHasTheMetricsOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		everything(t, observe.Prometheus(registry), func() { scrape(t, registry) })
		families, err := registry.Gather()
		require.NoError(t, err)
		listed := map[string]observe.Metric{}
		for _, m := range observe.Metrics() {
			listed[m.Prometheus] = m
		}
		require.Len(t, listed, len(observe.Metrics()))
		for _, family := range families {
			name := family.GetName()
			m, found := listed[name]
			require.True(t, found, "%s is not listed", name)
			delete(listed, name)
			assert.Equal(t, m.Description, family.GetHelp(), name)
			assert.Equal(t, strings.ToUpper(m.Kind), family.GetType().String(), name)
			assert.Equal(t, m.Unit == "s", strings.HasSuffix(name, "_seconds"), name)
			require.NotEmpty(t, family.GetMetric(), name)
			for _, one := range family.GetMetric() {
				var labels []string
				for _, label := range one.GetLabel() {
					labels = append(labels, label.GetName())
				}
				assert.ElementsMatch(t, m.Labels, labels, name)
				var buckets []float64
				for _, bucket := range one.GetHistogram().GetBucket() {
					buckets = append(buckets, bucket.GetUpperBound())
				}
				assert.Equal(t, m.Buckets, buckets, name)
			}
		}
		assert.Empty(t, listed, "these are not in the scrape")
	})
}

// TestOpenTelemetryHasTheMetricsOfTheList: the exporter for Prometheus reads the same ones, with all that
// TestAScrapeHasTheMetricsOfTheList looks at.
func TestOpenTelemetryHasTheMetricsOfTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := sdkmetric.NewManualReader()
		collect := func() (all metricdata.ResourceMetrics) {
			require.NoError(t, reader.Collect(t.Context(), &all))
			return all
		}
		everything(t, observe.OpenTelemetry(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), nil), func() { collect() })
		var want, have [][]string
		for _, m := range observe.Metrics() {
			want = append(want, []string{m.Name, m.Unit, m.Description})
		}
		all := collect()
		require.Len(t, all.ScopeMetrics, 1)
		assert.Equal(t, "github.com/tieredretry/watermill-retry/observe", all.ScopeMetrics[0].Scope.Name)
		for _, got := range all.ScopeMetrics[0].Metrics {
			have = append(have, []string{got.Name, got.Unit, got.Description})
		}
		assert.ElementsMatch(t, want, have)
	})
}
