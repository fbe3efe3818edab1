//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

const (
	alertRules = "../../observability/alerts/watermill-retry.yml"

	// shortFor replaces the "for" of each alert rule, which is minutes.
	shortFor = 5 * time.Second
)

// watcher is a Prometheus that scrapes the app each second and evaluates the alert rules.
type watcher struct {
	url  string
	stop func()
}

func startWatcher(ctx context.Context, metrics string) (_ *watcher, err error) {
	folder, err := os.MkdirTemp("", "watermill-retry-observability-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(folder)
		}
	}()
	config, err := prometheusConfig(folder, metrics, os.Getenv("AMQP_PROMETHEUS_URL"))
	if err != nil {
		return nil, err
	}
	server, err := prometheus.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	return &watcher{url: server.URL, stop: func() {
		server.Stop()
		_ = os.RemoveAll(folder)
	}}, nil
}

// prometheusConfig writes the alert rules into a folder, and returns the configuration of Prometheus. It scrapes the
// app, and RabbitMQ's own exporter where that has an address.
func prometheusConfig(folder, metrics, broker string) (string, error) {
	text, err := os.ReadFile(alertRules)
	if err != nil {
		return "", err
	}
	if text, err = hurried(text); err != nil {
		return "", fmt.Errorf("%s: %w", alertRules, err)
	}
	file := filepath.Join(folder, "alerts.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return "", err
	}
	scrapes := []map[string]any{scrape(handler, metrics)}
	if at, err := url.Parse(broker); err == nil && at.Host != "" {
		queues := scrape("rabbitmq-queues", at.Host)
		queues["metrics_path"] = "/metrics/detailed"
		queues["params"] = map[string]any{"family": []string{"queue_coarse_metrics", "queue_consumer_count"}}
		scrapes = append(scrapes, scrape("rabbitmq", at.Host), queues)
	}
	config, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{file},
		"scrape_configs": scrapes,
	})
	return string(config), err
}

func scrape(job, target string) map[string]any {
	return map[string]any{"job_name": job, "static_configs": []any{map[string]any{"targets": []string{target}}}}
}

// hurried cuts the "for" of each alert: a demo does not wait for minutes.
func hurried(rules []byte) ([]byte, error) {
	var file struct {
		Groups []struct {
			Rules []map[string]any `yaml:"rules"`
			Rest  map[string]any   `yaml:",inline"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(rules, &file); err != nil {
		return nil, err
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			text, given := r["for"].(string)
			if !given {
				continue
			}
			d, err := model.ParseDuration(text)
			if err != nil {
				return nil, fmt.Errorf("alert %v: %w", r["alert"], err)
			}
			r["for"] = min(time.Duration(d), shortFor).String()
		}
	}
	return yaml.Marshal(file)
}

// follow reports each alert that begins or ends, until the context ends.
func (w *watcher) follow(ctx context.Context, tell func(string, ...any)) {
	states := map[string]string{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var alerts model.Vector
		if err := prometheus.Query(ctx, w.url, "ALERTS", &alerts); err != nil {
			continue // the checks at the end report it
		}
		now := map[string]string{}
		for name := range states {
			now[name] = "over"
		}
		for _, a := range alerts {
			if name := string(a.Metric[model.AlertNameLabel]); now[name] != "firing" {
				now[name] = string(a.Metric["alertstate"])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if now[name] != states[name] {
				tell("  alert %s: %s", name, now[name])
			}
		}
		states = now
	}
}

// counts returns the values of a query whose result has one label, by that label.
func (w *watcher) counts(ctx context.Context, query, label string) (map[string]float64, error) {
	var samples model.Vector
	if err := prometheus.Query(ctx, w.url, query, &samples); err != nil {
		return nil, err
	}
	counts := map[string]float64{}
	for _, s := range samples {
		counts[string(s.Metric[model.LabelName(label)])] = float64(s.Value)
	}
	return counts, nil
}
