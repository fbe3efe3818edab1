package cli

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// role is the permissions of one kind of user: regular expressions, as rabbitmqctl set_permissions gets them.
type role struct{ name, about, tag, configure, write, read string }

// rolesOf returns the least permissions of each kind of user.
func rolesOf(wanted []deadletter.Wanted) []role {
	var works, groups, prefixes []string
	order, answers := "", []string(nil) // of handlers that keep an order
	for _, w := range wanted {
		works = append(works, regexp.QuoteMeta(w.Queue.Name))
		if w.Topology.TierGroup != "" {
			groups = append(groups, regexp.QuoteMeta(w.Topology.TierGroup))
		}
		if w.Topology.Partitions > 0 {
			order, answers = `|\.order(\..*)?`, []string{`amq\.default`}
		}
		prefixes = append(prefixes, regexp.QuoteMeta(w.Topology.Prefix))
	}
	work, group, prefix := oneOf(works), oneOf(groups), oneOf(prefixes)
	dead, orphans := work+regexp.QuoteMeta(deadletter.QueueOf("")), prefix+`\.orphans`
	own := []string{work + `(\.dead|\.` + prefix + `\..*` + order + `)?`,
		prefix + `(\.return(\.any)?|\.orphans` + order + `)?`}
	if group != "" {
		own = append(own, group+`\.`+prefix+`(\..*)?`)
	}
	all := pattern(own...)
	return []role{
		{"app", "An app that declares its topology. To publish to a work queue it also needs write on " +
			"amq.default, or on its own exchange.", "", all, pattern(slices.Concat(own, answers)...), all},
		{"viewer", "wmretry dead list, show, export, and status.", "management",
			"^$", "^$", pattern(dead, orphans)},
		{"redriver", "wmretry dead, all commands, and status.", "management",
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

// printPermissions prints commands that give the roles their permissions. The name of each role stands for that of a
// user.
func (e *env) printPermissions(wanted []deadletter.Wanted) error {
	vhost := "/"
	for _, address := range append(e.flags.urls, os.Getenv(urlVariable), os.Getenv(rabbitVariable)) {
		if uri, err := amqp091.ParseURI(address); err == nil {
			vhost = uri.Vhost
			break
		}
	}
	var s strings.Builder
	for _, r := range rolesOf(wanted) {
		_, _ = fmt.Fprintf(&s, "# %s: %s\n", r.name, r.about)
		if r.tag != "" {
			_, _ = fmt.Fprintf(&s, "rabbitmqctl set_user_tags %s %s\n", r.name, r.tag)
		}
		_, _ = fmt.Fprintf(&s, "rabbitmqctl set_permissions -p %s %s %s %s %s\n\n", safe(shell.Quote(vhost)), r.name,
			safe(shell.Quote(r.configure)), safe(shell.Quote(r.write)), safe(shell.Quote(r.read)))
	}
	_, err := io.WriteString(e.stdout, strings.TrimSuffix(s.String(), "\n"))
	return err
}
