package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

// observed: the metrics of an app on this backend count its outcomes and its copies.
func observed(t *testing.T, f *fixture) {
	const messages = 10
	app := f.app(200 * time.Millisecond)
	topics := f.topics(1)
	router, retries := f.connect(app, topics, nil)
	registry := prometheus.NewRegistry()
	retries.Observe(observe.Prometheus(registry))
	retries.AddConsumerHandler(router, "billing", topics[0], func(msg *message.Message) error {
		switch one := f.ledger.add(msg); {
		case one.id == "stolen":
			return backoff.Permanent(errDown)
		case one.failures == 0:
			return errDown
		}
		return nil
	})
	f.launch(router, retries)
	f.publishWith(retries.Publisher(), topics[0], append(ids(messages), "stolen")...)
	for _, want := range []struct {
		metric, label string
		value         float64
	}{
		{"watermill_retry_outcomes_total", string(retry.Retried), messages},
		{"watermill_retry_outcomes_total", string(retry.Recovered), messages},
		{"watermill_retry_outcomes_total", string(retry.DeadLettered), 1},
		{"watermill_retry_publishes_total", "copy", messages + 1},
		{"watermill_retry_publishes_total", "app", messages + 1},
		{"watermill_retry_consuming", "billing", 1},
	} {
		require.Eventually(t, func() bool {
			return sum(t, registry, want.metric, want.label) >= want.value
		}, patience, 50*time.Millisecond, "%s with %q is at least %v", want.metric, want.label, want.value) // a message may be delivered twice
	}
}

// sum adds the series of a metric that have this value of a label.
func sum(t *testing.T, registry *prometheus.Registry, name, value string) (total float64) {
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if family.GetName() == name && strings.EqualFold(label.GetValue(), value) {
					total += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
				}
			}
		}
	}
	return total
}
