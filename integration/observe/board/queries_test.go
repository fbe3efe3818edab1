package board_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	promapi "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

const (
	boardFolder = "../../../observability/dashboards"
	alertFile   = "../../../observability/alerts/watermill-retry.yml"
	docsPage    = "../../../docs/observability.md"
)

// A question is a query that is evaluated.
type question struct {
	where  string // it comes from
	expr   string
	labels []string // that its result must have
	empty  bool     // its result may be empty: it compares
}

// TestQueries evaluates every query of the boards, the alerts and the documentation with a real Prometheus, which scrapes a real app and
// RabbitMQ. Each selector must find a series, and each result must have a value.
func TestQueries(t *testing.T) {
	questions := alertQuestions(t)
	documented := docsQuestions(t)
	boards := boardQuestions(t)
	questions = append(append(questions, documented...), boards...)

	a := startApp(t)
	s := startPrometheus(t, a.metrics)
	values := strings.NewReplacer("${datasource}", "", "$__rate_interval", "10s", "$__interval", "10s", "$job", job, "$topic", ".*", "$handler", billing,
		"$instance", ".*", "$vhost", ".*", "$prefix", a.prefix)
	poll(t, func() error {
		var open []question
		var faults []error
		for _, q := range questions {
			if err := s.answers(t.Context(), values.Replace(q.expr), q); err != nil {
				open, faults = append(open, q), append(faults, fmt.Errorf("%s: %w", q.where, err))
			}
		}
		questions = open
		return errors.Join(faults...)
	})

	s.requirePauseShown(t, boards, values, "mail")
	s.requireAlerts(t, "DeadLettersGrowing", "OrphansAboveZero", "Holding", "OrderBlocked", "PausedTooLong", "OverdueTier")
	t.Logf("%d queries of boards, %d of the documentation", len(boards), len(documented))
}

// requirePauseShown: a paused handler is shown with its reason, and not as one that does not consume.
func (s *server) requirePauseShown(t *testing.T, boards []question, values *strings.Replacer, handler string) {
	t.Helper()
	var shown []string // the reasons of the paused handler
	for _, q := range boards {
		if !strings.HasSuffix(q.where, "panel Handlers that take no messages") {
			continue
		}
		samples, err := s.query(t.Context(), values.Replace(q.expr))
		require.NoError(t, err)
		for _, result := range samples {
			if string(result.Metric["handler"]) == handler && result.Value > 0 {
				shown = append(shown, string(result.Metric["reason"]))
			}
		}
	}
	require.Equal(t, []string{"paused"}, shown)
}

// poll calls a function until it returns no error.
func poll(t *testing.T, try func() error) {
	t.Helper()
	tick, deadline := time.NewTicker(500*time.Millisecond), time.Now().Add(soon)
	defer tick.Stop()
	for err := try(); err != nil; err = try() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v:\n%v", soon, err)
		}
		<-tick.C
	}
}

// answers evaluates one query, and then each of its selectors.
func (s *server) answers(ctx context.Context, expr string, q question) error {
	if left := regexp.MustCompile(`\$\w+|\$\{\w+\}`).FindString(expr); left != "" {
		return fmt.Errorf("the variable %s has no value in\n%s", left, expr)
	}
	samples, err := s.query(ctx, expr)
	if err != nil {
		return fmt.Errorf("%w: in\n%s", err, expr)
	}
	found := selectors(expr)
	if len(found) == 0 {
		return fmt.Errorf("no metric is named in\n%s", expr)
	}
	for _, selector := range found {
		series, err := s.query(ctx, selector)
		if err != nil || len(series) == 0 {
			return fmt.Errorf("no series for %s (%v) of\n%s", selector, err, expr)
		}
	}
	number := false
	for _, sample := range samples {
		number = number || !math.IsNaN(float64(sample.Value))
		for _, label := range q.labels {
			if _, has := sample.Metric[model.LabelName(label)]; !has {
				return fmt.Errorf("the label %s is missing in the result of\n%s", label, expr)
			}
		}
	}
	if !number && !q.empty {
		return fmt.Errorf("%d series, and none has a value:\n%s", len(samples), expr)
	}
	return nil
}

// requireAlerts waits until these alerts are pending or firing in Prometheus, and requires that it evaluates all of them.
func (s *server) requireAlerts(t *testing.T, names ...string) {
	t.Helper()
	poll(t, func() error {
		all, err := s.Rules(t.Context(), nil)
		if err != nil {
			return err
		}
		active := map[string]bool{}
		for _, group := range all.Groups {
			for _, rule := range group.Rules {
				r := rule.(promapi.AlertingRule)
				require.NotEqual(t, promapi.RuleHealthBad, r.Health, "%s: %s", r.Name, r.LastError)
				active[r.Name] = r.State != string(promapi.AlertStateInactive)
			}
		}
		for _, name := range names {
			if !active[name] {
				return fmt.Errorf("what the app does makes no alert %s", name)
			}
		}
		return nil
	})
}

// legendLabel is a label in the legend of a panel.
var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

// choices is the query of a variable.
var choices = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

func boardFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(boardFolder, "*.json"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	return files
}

// boardQuestions reads the boards as Grafana gets them.
func boardQuestions(t *testing.T) (all []question) {
	t.Helper()
	for _, file := range boardFiles(t) {
		b := readBoard(t, file)
		for _, v := range b.Templating.List {
			if v.Type != "query" {
				continue
			}
			parts := choices.FindStringSubmatch(v.Definition)
			require.NotNil(t, parts, "%s: the variable %s: %s", file, v.Name, v.Definition)
			all = append(all, question{where: filepath.Base(file) + ", variable " + v.Name, expr: parts[1], labels: parts[2:]})
		}
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				q := question{where: filepath.Base(file) + ", panel " + p.Title, expr: target.Expr}
				for _, label := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
					if label[1] != "reason" { // Prometheus leaves out an empty label
						q.labels = append(q.labels, label[1])
					}
				}
				all = append(all, q)
			}
		}
	}
	return all
}

type boardFile struct {
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		Targets                  []struct {
			Expr, LegendFormat string
			Exemplar           bool
		}
	}
}

func readBoard(t *testing.T, file string) (b boardFile) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &b), file)
	return b
}

func alertQuestions(t *testing.T) (all []question) {
	t.Helper()
	for _, a := range readAlerts(t) {
		all = append(all, question{where: "alert " + a.Alert, expr: a.Expr, empty: true})
	}
	return all
}

// docsQuestions returns the blocks of PromQL of the documentation. An empty line separates two queries of a block.
func docsQuestions(t *testing.T) (all []question) {
	t.Helper()
	page, err := os.ReadFile(docsPage)
	require.NoError(t, err)
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for expr := range strings.SplitSeq(block[1], "\n\n") {
			all = append(all, question{where: filepath.Base(docsPage), expr: strings.TrimSpace(expr), empty: strings.ContainsAny(expr, "<>")})
		}
	}
	require.NotEmpty(t, all, "%s has no PromQL", docsPage)
	return all
}
