package board_test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/api"
	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

const job = "shop"

// server is a Prometheus that scrapes the app and RabbitMQ, and evaluates the alerts.
type server struct {
	promapi.API
	url string
}

func startPrometheus(t *testing.T, appMetrics string) *server {
	t.Helper()
	alerts, err := filepath.Abs(alertFile)
	require.NoError(t, err)
	private, err := prometheus.Start(t.Context(), fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - {job_name: %s, static_configs: [{targets: [%q]}]}
  - {job_name: rabbitmq, static_configs: [{targets: [%[4]q]}]}
  - job_name: rabbitmq-queues
    metrics_path: /metrics/detailed
    params: {family: [queue_coarse_metrics, queue_consumer_count]}
    static_configs: [{targets: [%[4]q]}]
`, alerts, job, host(t, appMetrics), host(t, broker.Exporter(t))))
	require.NoError(t, err)
	t.Cleanup(private.Stop)
	client, err := api.NewClient(api.Config{Address: private.URL})
	require.NoError(t, err)
	return &server{promapi.NewAPI(client), private.URL}
}

func host(t *testing.T, address string) string {
	t.Helper()
	uri, err := url.Parse(address)
	require.NoError(t, err)
	return uri.Host
}

// query evaluates an expression.
func (s *server) query(ctx context.Context, expr string) (model.Vector, error) {
	var samples model.Vector
	err := prometheus.Query(ctx, s.url, expr, &samples)
	return samples, err
}
