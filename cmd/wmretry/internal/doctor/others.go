package doctor

import (
	"context"
	"slices"

	"github.com/tieredretry/watermill-retry/internal/operate"
)

// Others is a report on a backend that is not RabbitMQ. It has no secrets.
type Others struct {
	Server   string            `json:"server"`
	Waiting  []operate.Waiting `json:"waiting"`
	Apps     []App             `json:"apps"`
	Findings []Finding         `json:"findings"`
	Unseen   []string          `json:"unseen"`
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
func Look(ctx context.Context, operator operate.Looker, endpoints, ignored []string) (o Others, err error) {
	checked, err := operator.Check(ctx)
	if err != nil {
		return o, err
	}
	s := Snapshot{Apps: []App{}}
	for _, endpoint := range endpoints {
		s.Apps = append(s.Apps, ask(ctx, endpoint))
	}
	if len(endpoints) == 0 {
		checked.Unseen = append(checked.Unseen, "the health of apps: --health URL")
	}
	o = Others{Server: checked.Server, Apps: s.Apps, Unseen: append([]string{}, checked.Unseen...),
		Waiting: checked.Waiting, Findings: find(&s, ofApps, ignored)}
	for _, f := range checked.Findings {
		if !slices.Contains(ignored, f.Rule) {
			o.Findings = append(o.Findings, f)
		}
	}
	return o, nil
}
