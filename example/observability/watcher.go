//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/api"
	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

const (
	// shortFor replaces the "for" of each alert rule, which is minutes.
	shortFor = 5 * time.Second

	retriesQuery = `sum by (outcome) (rate(watermill_retry_outcomes_total[10s]))`
)

// watcher is a Prometheus that scrapes the app each second and evaluates the alert rules, and a Grafana where Docker answers.
type watcher struct {
	promapi.API
	url     string
	pages   string // where Prometheus has its pages
	grafana string // its address, or why there is none
	stop    func()
}

func startWatcher(ctx context.Context, opts options, metrics string) (*watcher, error) {
	folder, err := os.MkdirTemp("", "watermill-retry-observability-")
	if err != nil {
		return nil, err
	}
	remove := func() { _ = os.RemoveAll(folder) }
	config, err := prometheusConfig(folder, opts.rules, metrics, os.Getenv("AMQP_PROMETHEUS_URL"))
	if err != nil {
		remove()
		return nil, err
	}
	server, err := prometheus.Start(ctx, config, "--enable-feature=exemplar-storage")
	if err != nil {
		remove()
		return nil, err
	}
	client, err := api.NewClient(api.Config{Address: server.URL})
	if err != nil {
		server.Stop()
		remove()
		return nil, err
	}
	w := &watcher{API: promapi.NewAPI(client), url: server.URL, pages: pagesOf(ctx, server.URL), grafana: "is not started with -once"}
	stopGrafana := func() {}
	if !opts.once {
		if w.grafana, stopGrafana, err = startGrafana(ctx, opts.boards, server.URL); err != nil {
			w.grafana = fmt.Sprintf("is not started: %v. The boards are in observability/dashboards", err)
		}
	}
	w.stop = func() { stopGrafana(); server.Stop(); remove() }
	return w, nil
}

// pagesOf returns the address of the pages alerts and graph. Debian's package has the old ones only.
func pagesOf(ctx context.Context, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/alerts", nil)
	if err != nil {
		return url
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return url
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusNotFound {
		return url + "/classic"
	}
	return url
}

// prometheusConfig writes the alert rules into a folder, and returns the configuration of Prometheus. It scrapes the app, and RabbitMQ's
// own exporter where that has an address.
func prometheusConfig(folder, rules, metrics, broker string) (string, error) {
	text, err := os.ReadFile(rules)
	if err != nil {
		return "", fmt.Errorf("-rules: %w", err)
	}
	if text, err = hurried(text); err != nil {
		return "", fmt.Errorf("-rules %s: %w", rules, err)
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
		Groups []map[string]any `yaml:"groups"`
	}
	if err := yaml.Unmarshal(rules, &file); err != nil {
		return nil, err
	}
	alerts := 0
	for _, g := range file.Groups {
		all, _ := g["rules"].([]any)
		for _, one := range all {
			r, _ := one.(map[string]any)
			if r["alert"] == nil {
				continue
			}
			alerts++
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
	if alerts == 0 {
		return nil, errors.New("there are no alerts in it")
	}
	return yaml.Marshal(map[string]any{"groups": file.Groups})
}

// follow reports each alert that begins or ends, until the function that it returns is called.
func (w *watcher) follow(ctx context.Context, tell func(string, ...any)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		states := map[string]promapi.AlertState{}
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			answer, err := w.Alerts(ctx)
			if err != nil {
				continue // the checks at the end report it
			}
			now := map[string]promapi.AlertState{}
			for _, a := range answer.Alerts {
				if name := string(a.Labels[model.AlertNameLabel]); now[name] != promapi.AlertStateFiring {
					now[name] = a.State
				}
			}
			for _, name := range slices.Sorted(maps.Keys(now)) {
				if now[name] != states[name] {
					tell("  alert %s: %s", name, now[name])
				}
			}
			for _, name := range slices.Sorted(maps.Keys(states)) {
				if now[name] == "" {
					tell("  alert %s: over", name)
				}
			}
			states = now
		}
	})
	return func() {
		cancel()
		following.Wait()
	}
}

// counts returns the values of a query whose result has one label, by that label.
func (w *watcher) counts(ctx context.Context, query, label string) (map[string]float64, error) {
	value, _, err := w.Query(ctx, query, time.Now())
	if err != nil {
		return nil, err
	}
	counts := map[string]float64{}
	samples, _ := value.(model.Vector)
	for _, s := range samples {
		counts[string(s.Metric[model.LabelName(label)])] = float64(s.Value)
	}
	return counts, nil
}
