package doctor

import (
	"context"
	"slices"

	"github.com/tieredretry/watermill-retry/internal/operate"
)

// Other is a backend that is not RabbitMQ.
type Other struct {
	Server  string            `json:"server"`
	Waiting []operate.Waiting `json:"waiting"`
}

// ofApps are the rules that look at apps only.
var ofApps = []rule{{"clock", clocks}, {"health", health}}

// ofOthers are the names of the rules of the backends, beside overdue and unknown.
var ofOthers = map[string][]string{
	"Redis": {"version", "eviction", "memory", "persistence", "consumers"},
	"NATS":  {"version", "limits", "replicas", "storage", "overlap"},
	"PostgreSQL": {"version", "persistence", "timeouts", "pooler", "functions", "grants", "dead-rows", "long-transaction",
		"transaction-id"},
	"Kafka": {"retention", "insync", "leader", "lag", "acls"},
}

// NamesOn returns the names of the rules on a backend.
func NamesOn(backend string) []string {
	own, is := ofOthers[backend]
	if !is {
		return Names()
	}
	return slices.Concat(own, []string{"overdue", "unknown", "clock", "health"})
}

// Look looks at a backend that is not RabbitMQ, and at the health of apps.
func Look(ctx context.Context, operator operate.Looker, endpoints, ignored []string) (Report, error) {
	checked, err := operator.Check(ctx)
	if err != nil {
		return Report{}, err
	}
	s := Snapshot{Unseen: append([]string{}, checked.Unseen...)}
	s.askApps(ctx, endpoints)
	report := Report{Other: &Other{checked.Server, checked.Waiting}, Apps: s.Apps, Unseen: s.Unseen,
		Findings: find(&s, ofApps, ignored)}
	for _, f := range checked.Findings {
		if !slices.Contains(ignored, f.Rule) {
			report.Findings = append(report.Findings, f)
		}
	}
	return report, nil
}
