package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/doctor"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestOutput: each template of output.txt prints all parts of its value, each in its line, and escapes them.
func TestOutput(t *testing.T) {
	e := &env{kind: backend.RabbitMQ, where: "amqp://broker/shop"}
	at := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	findings := []doctor.Finding{{Rule: "clock", Subject: "app\x1b", What: "it is late", Do: []string{"wait", "or\tnot"}}}
	other := doctor.Report{Other: &doctor.Other{Server: "Redis 8", Waiting: []operate.Waiting{{Name: "a.b"}}}}
	rabbit := doctor.Report{RabbitMQ: &doctor.RabbitMQ{
		Vhost: "my shop", Broker: management.About{Version: "4.3.6", Erlang: "28", User: "ops", Tags: []string{"a", "b"}},
		Support: "tested", Status: letters.Status{At: at}, WaysIn: findings,
		Policies: map[string]management.Arguments{"orders": {"max-length": 9}},
	}, Apps: []doctor.App{{URL: "http://down"}, {URL: "http://shop", Health: &retry.Health{}}}, Findings: findings,
		Unseen: []string{"the rest"}}
	drift := deadletter.Report{Differences: []deadletter.Difference{
		{Kind: deadletter.Create, Object: "queue", Name: "a\x1b"}, {Kind: deadletter.Conflict, Object: "queue", Name: "b", Reason: "why"},
		{Kind: deadletter.Policy, Object: "queue", Name: "c", Reason: "why", Advice: "do"}, {Kind: deadletter.Note, Object: "queue", Name: "d"},
	}}
	unknown := &letters.Letter{ID: "u", Queue: "q", Kind: letters.Unknown}
	redriven := &letters.Letter{ID: "r", Queue: "q\x1b", Target: "w", Kind: letters.Library, Payload: []byte("hello"),
		Record: retry.Record{Failures: 3, LastFailedAt: at, Remaining: time.Second},
		Redriven: letters.Redriven{Times: 9, Redrives: []letters.PastRedrive{
			{At: at}, {At: at, By: "me", Note: "a note", Again: true, Failures: 2, DeadReason: "exhausted", Reason: "refused"},
		}},
		Properties: map[string]string{"priority": "4"}, Metadata: map[string]string{"a": "1"}, Headers: map[string]any{"b": int32(2)},
	}
	pruned := func(dryRun bool, removed, left []string) prunedTiers {
		return prunedTiers{deadletter.Pruned{Removed: removed, Left: left}, dryRun}
	}
	reported := func(command, queue string, o letters.Redrive, change func(*report)) *report {
		r := e.report(command, queue, queue, o)
		change(r)
		return r
	}
	early := reported("redrive", "orders\x1b", letters.Redrive{}, func(r *report) {
		r.Summary, r.Seconds, r.Error = letters.Summary{Total: 12_345, Done: 3, Other: 1, Kept: 2, Unseen: 9, Redead: 1, Doubtful: 1}, 1.234, "away"
		r.Causes = []letters.Group{{Count: 3, Cause: letters.Cause{DeadReason: "exhausted", Reason: "refused"}}}
	})
	full := reported("discard", "orders", letters.Redrive{Limit: 3}, func(r *report) {
		r.Summary, r.Export, r.Beyond = letters.Summary{Total: 9, Done: 3, Kept: 2, Unseen: 4}, "old letters", "the number that you confirmed"
	})
	back := reported("import", "", letters.Redrive{}, func(r *report) { r.Summary = letters.Summary{Total: 5, Done: 5, Redead: 2, Doubtful: 2} })
	dry := reported("drain", "tier", letters.Redrive{DryRun: true}, func(r *report) { r.Total, r.Unseen, r.Error = 5, 5, "away" })
	would := reported("redrive", "orders", letters.Redrive{DryRun: true}, func(r *report) { r.Total, r.Done = 2, 2 })
	blind := reported("redrive", "orders", letters.Redrive{}, func(r *report) { r.Total, r.Done, r.CanaryUnknown = 2, 2, true })
	var have strings.Builder
	for _, row := range []struct {
		name  string
		value any
	}{
		{"letter", unknown}, {"letter", redriven}, {"examined", examined{"v1", "v2", "go1.26", other}},
		{"examined", examined{"v1", "v2", "go1.26", rabbit}}, {"plan", plan{drift, true, true}}, {"plan", plan{}},
		{"pruned", pruned(false, []string{"a\x1b"}, []string{"b\x1b"})}, {"pruned", pruned(true, []string{"c"}, nil)},
		{"pruned", pruned(false, nil, nil)}, {"report", early}, {"report", full}, {"report", back}, {"report", dry}, {"report", would},
		{"report", blind},
	} {
		have.WriteString("#### " + row.name + "\n" + e.text(row.name, row.value))
	}
	want, err := os.ReadFile("testdata/output.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), have.String())
}
