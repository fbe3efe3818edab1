package components

import (
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/retrytest"
)

// counted returns how often the metrics of a handler counted a success and a failure.
func counted(t *testing.T, registry *prometheus.Registry) map[string]uint64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	counts := map[string]uint64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "success" && metric.GetHistogram() != nil {
					counts[label.GetValue()] += metric.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return counts
}

// The histogram of components/metrics counts what the middlewares inside of it return.
func TestMetricsSeeFailuresInsideOnly(t *testing.T) {
	for name, want := range map[string]map[string]uint64{
		"outside": {"true": 3},
		"inside":  {"true": 1, "false": 2},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T, app *retrytest.App) {
				registry := prometheus.NewRegistry()
				chain := []message.HandlerMiddleware{metrics.NewPrometheusMetricsBuilder(registry, "", "").NewRouterMiddleware().Middleware, app.Middleware}
				if name == "inside" {
					slices.Reverse(chain)
				}
				calls := 0
				fails := twice(&calls, errDown)
				subscriber, err := app.Subscriber("billing")
				require.NoError(t, err)
				app.Router.AddConsumerHandler("billing", "orders", subscriber, func(*message.Message) error { return fails() }).
					AddMiddleware(chain...)
				retriedTwice(app.Send("orders", message.NewMessage("order-1", nil)))
				assert.Equal(t, want, counted(t, registry))
			})
		})
	}
}
