package components

import (
	"github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

// Watermill's own metrics count failures only inside of the retry middleware. They and those of package observe share a registry.
func Example_watermillMetrics() {
	var rabbit retry.Connection // of Connect
	var router *message.Router

	add := func(bill message.NoPublishHandlerFunc) {
		registry := prometheus.NewRegistry()
		rabbit.Observe(observe.Prometheus(registry))
		builder := metrics.NewPrometheusMetricsBuilder(registry, "", "")
		rabbit.AddConsumerHandler(router, "billing", "orders", bill).AddMiddleware(builder.NewRouterMiddleware().Middleware)
	}
	_ = add
}
