package board_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

const job = "shop"

// server is a Prometheus that scrapes the app and RabbitMQ, and evaluates the alerts.
type server struct{ url string }

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
	return &server{private.URL}
}

func host(t *testing.T, address string) string {
	t.Helper()
	uri, err := url.Parse(address)
	require.NoError(t, err)
	return uri.Host
}

// sample is a series, and its value now.
type sample struct {
	Metric map[string]string
	Value  [2]any // the time, and a number as text
}

func (s sample) number() float64 {
	text, _ := s.Value[1].(string)
	number, _ := strconv.ParseFloat(text, 64)
	return number
}

// query evaluates an expression. It returns the samples sorted as Prometheus does.
func (s *server) query(ctx context.Context, expr string) ([]sample, error) {
	var data struct {
		ResultType string
		Result     json.RawMessage
	}
	if err := s.get(ctx, "/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return nil, err
	}
	var samples []sample
	if data.ResultType != "vector" {
		return nil, fmt.Errorf("the result is a %s, not a vector", data.ResultType)
	}
	return samples, json.Unmarshal(data.Result, &samples)
}

// rule is an alert as Prometheus shows it.
type rule struct {
	Name, Query, Health, LastError, State string
}

func (s *server) rules(ctx context.Context) ([]rule, error) {
	var data struct{ Groups []struct{ Rules []rule } }
	if err := s.get(ctx, "/api/v1/rules", nil, &data); err != nil {
		return nil, err
	}
	var all []rule
	for _, group := range data.Groups {
		all = append(all, group.Rules...)
	}
	return all, nil
}

func (s *server) get(ctx context.Context, path string, values url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path+"?"+values.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer := struct {
		Error string
		Data  any
	}{Data: into}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, response.Status, err)
	}
	if answer.Error != "" {
		return fmt.Errorf("Prometheus refuses it: %s", answer.Error)
	}
	return nil
}
