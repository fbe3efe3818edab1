// Package export writes topologies in the forms of other tools. It does not connect.
package export

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/drift"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Topology is what apps declare in a virtual host.
type Topology struct {
	Vhost  string
	Wanted []drift.Wanted
}

func (t Topology) topologies() (all []topology.Topology) {
	for _, w := range t.Wanted {
		all = append(all, topology.New(w.Topology, w.Queue))
	}
	return all
}

func (t Topology) merged() (topology.Definitions, error) { return topology.Merge(t.topologies()...) }

// Definitions writes the form that RabbitMQ imports into a virtual host.
func Definitions(to io.Writer, t Topology) error {
	all, err := t.merged()
	if err != nil {
		return err
	}
	return indented(to, all)
}

func indented(to io.Writer, value any) error {
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// policy is a policy in RabbitMQ's definitions of one virtual host.
type policy struct {
	Name       string         `json:"name"`
	Pattern    string         `json:"pattern"`
	ApplyTo    string         `json:"apply-to"`
	Priority   int            `json:"priority"`
	Definition map[string]any `json:"definition"`
}

// Policies writes policies for queues that exist already, whose arguments cannot be changed: one that makes a work
// queue dead-letter what the broker gives up, and one that limits the dead letters as configured.
func Policies(to io.Writer, t Topology) error {
	if _, err := t.merged(); err != nil {
		return err
	}
	policies := []policy{}
	for _, w := range t.Wanted {
		name := w.Queue.Name
		if w.Topology.WorkQueueMode != topology.Leave && w.Queue.Arguments["x-dead-letter-exchange"] == nil {
			policies = append(policies, policy{
				Name: "retry of " + name, Pattern: exactly(name), ApplyTo: "queues",
				Definition: map[string]any{"dead-letter-exchange": w.Topology.Prefix,
					"dead-letter-routing-key": deadKey(topology.New(w.Topology, w.Queue))},
			})
		}
		limits := map[string]any{}
		if n := w.Topology.DeadLetters.MaxLength; n > 0 {
			limits["max-length"] = n
		}
		if age := w.Topology.DeadLetters.MaxAge; age > 0 {
			limits["message-ttl"] = age.Milliseconds()
		}
		if len(limits) > 0 {
			policies = append(policies, policy{
				Name: "dead letters of " +
					name, Pattern: exactly(deadletter.QueueOf(name)), ApplyTo: "queues", Definition: limits,
			})
		}
	}
	return indented(to, map[string]any{"policies": policies})
}

// deadKey is the routing key of the dead letters of a work queue.
func deadKey(t topology.Topology) string {
	at := slices.IndexFunc(t.Bindings, func(b topology.Binding) bool { return b.Queue == t.DeadLetterQueue() })
	return t.Bindings[at].Key
}

func exactly(name string) string { return "^" + regexp.QuoteMeta(name) + "$" }

// Role is the permissions of one kind of user: regular expressions, as rabbitmqctl set_permissions gets them.
type Role struct {
	Name, About, Tag       string
	Configure, Write, Read string
}

// Roles returns the least permissions of each kind of user.
func (t Topology) Roles() []Role {
	var works, groups, prefixes []string
	for _, w := range t.Wanted {
		works = append(works, regexp.QuoteMeta(w.Queue.Name))
		if w.Topology.TierGroup != "" {
			groups = append(groups, regexp.QuoteMeta(w.Topology.TierGroup))
		}
		prefixes = append(prefixes, regexp.QuoteMeta(w.Topology.Prefix))
	}
	work, group, prefix := oneOf(works), oneOf(groups), oneOf(prefixes)
	dead, orphans := work+regexp.QuoteMeta(deadletter.QueueOf("")), prefix+`\.orphans`
	own := []string{work + `(\.dead|\.` + prefix + `\..*)?`, prefix + `(\.return(\.any)?|\.orphans)?`}
	if group != "" {
		own = append(own, group+`\.`+prefix+`(\..*)?`)
	}
	all := pattern(own...)
	return []Role{
		{"app", "An app that declares its topology. To publish to a work queue it also needs write on " +
			"amq.default, or on its own exchange.", "", all, all, all},
		{"viewer", "wmretry dead list, show and export, orphans, and status (with the management API).", "management",
			"^$", "^$", pattern(dead, orphans)},
		{"redriver", "wmretry dead and orphans, all commands, and status.", "management",
			pattern(`(` + dead + `|` + orphans + `)\.lock`), pattern(`amq\.default`,
				prefix+`(\.(return|orphans))?`), pattern(work+`(\.dead)?`, orphans)},
		{"operator", "all commands of wmretry.", "management",
			pattern(slices.Concat(own, []string{`(` + dead + `|` + orphans +
				`)\.lock`})...), pattern(slices.Concat(own, []string{`amq\.default`})...), all},
	}
}

func oneOf(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	switch len(names) {
	case 0:
		return ""
	case 1:
		return names[0]
	}
	return "(" + strings.Join(names, "|") + ")"
}

func pattern(parts ...string) string {
	if len(parts) == 1 {
		return "^" + parts[0] + "$"
	}
	return "^(" + strings.Join(parts, "|") + ")$"
}

// Permissions writes commands that give the roles their permissions. The name of each role stands for that of a user.
func Permissions(to io.Writer, t Topology) error {
	if _, err := t.merged(); err != nil {
		return err
	}
	var s strings.Builder
	for _, role := range t.Roles() {
		_, _ = fmt.Fprintf(&s, "# %s: %s\n", role.Name, role.About)
		if role.Tag != "" {
			_, _ = fmt.Fprintf(&s, "rabbitmqctl set_user_tags %s %s\n", role.Name, role.Tag)
		}
		_, _ = fmt.Fprintf(&s, "rabbitmqctl set_permissions -p %s %s %s %s %s\n\n", shell(t.Vhost), role.Name,
			shell(role.Configure), shell(role.Write), shell(role.Read))
	}
	_, err := io.WriteString(to, strings.TrimSuffix(s.String(), "\n"))
	return err
}

// shell quotes a text for a shell.
func shell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
