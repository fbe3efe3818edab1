package board_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/tieredretry/watermill-retry/tools/prometheus"
)

const unitTests = "../../../observability/alerts/watermill-retry_test.yml"

// alert is a rule of the file of alerts.
type alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func readAlerts(t *testing.T) (all []alert) {
	t.Helper()
	text, err := os.ReadFile(alertFile)
	require.NoError(t, err)
	var file struct{ Groups []struct{ Rules []alert } }
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

type series struct{ Series string }

// unitTest is one test of the file of promtool. Its name is that of the alert, the state that is expected, and perhaps more words.
type unitTest struct {
	Name  string
	Input []series `yaml:"input_series"`
	Tests []struct {
		Alert  string           `yaml:"alertname"`
		Expect []map[string]any `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test"`
	node yaml.Node
}

func (u *unitTest) UnmarshalYAML(node *yaml.Node) error {
	type plain unitTest
	if err := node.Decode((*plain)(u)); err != nil {
		return err
	}
	u.node = *node
	return nil
}

// TestAlerts checks the alerts with promtool. Each must fire in one of its unit tests, and be quiet in another one. It writes a row for
// each alert to the file OBSERVE_REPORT.
func TestAlerts(t *testing.T) {
	output, err := prometheus.Promtool(t.Context(), "check", "rules", alertFile)
	require.NoError(t, err, output)
	text, err := os.ReadFile(unitTests)
	require.NoError(t, err)
	var file struct{ Tests []unitTest }
	require.NoError(t, yaml.Unmarshal(text, &file))
	alerts := readAlerts(t)

	passed := map[string]bool{} // by "<alert> <state>"
	for _, u := range file.Tests {
		words := strings.Fields(u.Name)
		require.GreaterOrEqual(t, len(words), 2, "the unit test %q: its name begins with the alert and a state", u.Name)
		i := slices.IndexFunc(alerts, func(a alert) bool { return a.Alert == words[0] })
		require.GreaterOrEqual(t, i, 0, "no alert for the unit test %q", u.Name)
		metric, _, _ := strings.Cut(selectors(alerts[i].Expr)[0], "{")
		require.True(t, slices.ContainsFunc(u.Input, func(in series) bool { return strings.HasPrefix(in.Series, metric+"{") }),
			"the unit test %q has no series of %s", u.Name, metric)
		key := words[0] + " " + words[1]
		err := u.run(t.Context(), t.TempDir(), words[0], words[1])
		if err != nil {
			t.Errorf("%s: %v", u.Name, err)
		}
		before, ran := passed[key]
		passed[key] = err == nil && (before || !ran)
	}
	var report strings.Builder
	for _, a := range alerts {
		fires, quiet := passed[a.Alert+" fires"], passed[a.Alert+" quiet"]
		fmt.Fprintf(&report, "alert=%s fires=%s quiet=%s\n", a.Alert, answer(fires), answer(quiet))
		if !fires || !quiet {
			t.Errorf("%s needs a unit test that fires and one that is quiet, and all of them must pass", a.Alert)
		}
	}
	t.Log("\n" + report.String())
	if path := os.Getenv("OBSERVE_REPORT"); path != "" {
		require.NoError(t, os.WriteFile(path, []byte(report.String()), 0o644))
	}
}

func answer(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// run runs one unit test alone.
func (u unitTest) run(ctx context.Context, folder, name, state string) error {
	switch {
	case len(u.Input) == 0:
		return fmt.Errorf("it has no series")
	case len(u.Tests) == 0:
		return fmt.Errorf("it evaluates no alert")
	}
	for _, test := range u.Tests {
		if test.Alert != name || len(test.Expect) > 0 != (state == "fires") || state != "fires" && state != "quiet" {
			return fmt.Errorf("it expects %d alerts of %s", len(test.Expect), test.Alert)
		}
	}
	rules, err := filepath.Abs(alertFile)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{rules}, "evaluation_interval": "1m", "tests": []*yaml.Node{&u.node}})
	if err != nil {
		return err
	}
	path := filepath.Join(folder, "test.yml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	_, err = prometheus.Promtool(ctx, "test", "rules", path)
	return err
}

// TestAlertsHaveWhatAReaderNeeds: a severity, a summary, a description with the value, and a runbook.
func TestAlertsHaveWhatAReaderNeeds(t *testing.T) {
	t.Parallel()
	for _, a := range readAlerts(t) {
		require.Contains(t, []string{"warning", "critical"}, a.Labels["severity"], a.Alert)
		require.NotEmpty(t, a.Annotations["summary"], a.Alert)
		if a.Alert != "AppAway" { // what is away has no value
			require.Contains(t, a.Annotations["description"], "$value", a.Alert)
		}
		require.Equal(t, "https://github.com/tieredretry/watermill-retry/blob/main/docs/operations.md#"+strings.ToLower(a.Alert),
			a.Annotations["runbook_url"], a.Alert)
	}
}

// TestRouteToAChat: observability/alertmanager.yml has a receiver for each route, and a route for each severity. amtool
// is not installed everywhere.
func TestRouteToAChat(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../observability/alertmanager.yml")
	require.NoError(t, err)
	type route struct {
		Receiver string
		Matchers []string
		Routes   []route
	}
	var file struct {
		Route   route
		Inhibit []struct {
			Target []string `yaml:"target_matchers"`
		} `yaml:"inhibit_rules"`
		Receivers []struct {
			Name  string
			Slack []struct {
				Channel, Text string
				URL           string `yaml:"api_url_file"`
			} `yaml:"slack_configs"`
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	channels := map[string]string{}
	for _, r := range file.Receivers {
		require.Len(t, r.Slack, 1, r.Name)
		require.NotEmpty(t, r.Slack[0].URL, r.Name)
		require.Contains(t, r.Slack[0].Text, ".CommonAnnotations.runbook_url", r.Name)
		channels[r.Name] = r.Slack[0].Channel
	}
	names := map[string]bool{}
	for _, a := range readAlerts(t) {
		names[a.Alert] = true
		receiver := file.Route.Receiver
		for _, r := range file.Route.Routes {
			if slices.Equal(r.Matchers, []string{`severity="` + a.Labels["severity"] + `"`}) {
				receiver = r.Receiver
			}
		}
		want := map[string]string{"critical": "chat-now", "warning": "chat"}[a.Labels["severity"]]
		require.Equal(t, want, receiver, a.Alert)
		require.NotEmpty(t, channels[receiver], receiver)
	}
	for _, rule := range file.Inhibit {
		require.Len(t, rule.Target, 1)
		_, targets, _ := strings.Cut(strings.Trim(rule.Target[0], `"`), `=~"`)
		for name := range strings.SplitSeq(targets, "|") {
			require.True(t, names[name], name)
		}
	}
}

// TestProbesOnKubernetes: the grace period of docs/kubernetes.md is longer than a shutdown, and the two probes differ.
func TestProbesOnKubernetes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/kubernetes.md")
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(page), "```yaml\n")
	block, _, _ = strings.Cut(block, "```")
	type probe struct {
		HTTPGet struct {
			Path string
			Port int
		} `yaml:"httpGet"`
	}
	var pod struct {
		Spec struct {
			Grace      int `yaml:"terminationGracePeriodSeconds"`
			Containers []struct {
				Readiness probe `yaml:"readinessProbe"`
				Liveness  probe `yaml:"livenessProbe"`
			}
		}
	}
	require.NoError(t, yaml.Unmarshal([]byte(block), &pod))
	require.Greater(t, pod.Spec.Grace, 31, "what docs/operations.md has of shutdowns")
	require.Len(t, pod.Spec.Containers, 1)
	require.Equal(t, "/ready", pod.Spec.Containers[0].Readiness.HTTPGet.Path)
	require.NotEqual(t, pod.Spec.Containers[0].Readiness, pod.Spec.Containers[0].Liveness)
}
