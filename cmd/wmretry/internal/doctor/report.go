package doctor

import (
	"context"
	_ "embed"
	"reflect"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/internal/each"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/letters"
)

// Finding is something that is wrong, or that an app can come from.
type Finding = operate.Finding

// Report is what the rules have found, and what they have looked at. It has no secrets.
type Report struct {
	*RabbitMQ // nil: another backend
	*Other    // nil: RabbitMQ

	Apps     []App     `json:"apps"`
	Findings []Finding `json:"findings"`
	Unseen   []string  `json:"unseen"` // what was not looked at
}

// RabbitMQ is a snapshot for a reader.
type RabbitMQ struct {
	Vhost   string           `json:"vhost"`
	Broker  management.About `json:"broker"`
	Support string           `json:"support"`
	Status  letters.Status   `json:"status"`
	// Policies is what policies set on the queues of Status.
	Policies map[string]management.Arguments `json:"policies"`
	WaysIn   []Finding                       `json:"ways_in"` // docs/adopting.md has all steps
}

// findingsText has what is wrong and what to do, by the names of entries.
//
//go:embed findings.txt
var findingsText string

// sentences returns an entry of findings.txt: what is wrong, and what to do. values are the names of values in braces,
// each followed by the value.
func sentences(entry string, values ...string) (all []string) {
	_, text, found := strings.Cut(findingsText, "\n# "+entry+"\n")
	if !found {
		panic("findings.txt has no entry " + entry)
	}
	text, _, _ = strings.Cut(text, "\n# ")
	filled := strings.NewReplacer(values...)
	for _, sentence := range strings.Split(text, "\n- ") {
		if sentence = filled.Replace(strings.Join(strings.Fields(sentence), " ")); sentence != "" {
			all = append(all, sentence)
		}
	}
	return all
}

// sink takes a finding of a rule: the name of an entry, and its values but {vhost}.
type sink func(subject, entry string, values ...string)

// rule is one kind of findings.
type rule struct {
	name string
	find func(s *Snapshot, found sink)
}

var rules = []rule{
	{"support", support}, {"permissions", permissions}, {"clock", clocks}, {"unprotected", unprotected},
	{"policy", policies}, {"loop", loops}, {"limit", limits}, {"missing", missing}, {"state", states}, {"tier", tiers},
	{"overdue", overdue}, {"consumers", consumers}, {"health", health}, {"unreadable", unreadable},
}

// Examine applies the rules, without those that are ignored.
func Examine(s Snapshot, ignored ...string) Report {
	report := Report{Apps: s.Apps, Findings: find(&s, rules, ignored), Unseen: s.Unseen, RabbitMQ: &RabbitMQ{
		Vhost: s.Vhost, Broker: s.About, Status: s.Status, Policies: map[string]management.Arguments{},
		WaysIn: find(&s, waysIn, nil)}}
	_, report.Support = supportOf(s.About.Version, s.At)
	for _, name := range s.own() {
		if policy := s.Inventory.Queues[name].Effective; len(policy) > 0 {
			report.Policies[name] = policy
		}
	}
	return report
}

func find(s *Snapshot, rules []rule, ignored []string) []Finding {
	all := []Finding{}
	for _, r := range rules {
		if slices.Contains(ignored, r.name) {
			continue
		}
		r.find(s, func(subject, entry string, values ...string) {
			said := sentences(entry, append(values, "{vhost}", shell.Word(s.Vhost))...)
			f := Finding{Rule: r.name, Subject: subject, What: said[0], Do: said[1:]}
			same := func(other Finding) bool { return reflect.DeepEqual(f, other) } // of a group's tier
			if !slices.ContainsFunc(all, same) {
				all = append(all, f)
			}
		})
	}
	return all
}

// messages is "1 message" or "2 messages".
func messages(n int) string { return lettertext.Plural(n, "message", "messages") }

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
	"PostgreSQL": {"version", "persistence", "timeouts", "pooler", "schema", "grants", "dead-rows", "long-transaction",
		"transaction-id"},
	"Kafka": {"retention", "insync", "leader", "lag", "missing", "acls"},
}

// NamesOn returns the names of the rules on a backend.
func NamesOn(backend string) []string {
	own, is := ofOthers[backend]
	if !is {
		return each.Of(rules, func(r rule) string { return r.name })
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
	report.Findings = append(report.Findings, slices.DeleteFunc(checked.Findings,
		func(f Finding) bool { return slices.Contains(ignored, f.Rule) })...)
	return report, nil
}
