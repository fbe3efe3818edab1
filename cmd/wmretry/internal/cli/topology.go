package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

type topologyFlags struct {
	wantedFlags
	allowUnprotected bool
}

func newTopologyCommand(e *env) *cobra.Command {
	return e.group("topology", e.newComparison("topology plan", false), e.newComparison("topology apply", true),
		newExportTopologyCommand(e))
}

// newComparison returns a command that compares, and declares or does not.
func (e *env) newComparison(path string, declares bool) *cobra.Command {
	var f topologyFlags
	flags := f.with(variables{"allow-unprotected-quorum": &f.allowUnprotected})
	return e.command(path, flags, func(ctx context.Context, _ []string) error { return e.compare(ctx, &f, declares) })
}

// compare prints how what the flags describe differs from what is there, and declares what is missing, or does not.
func (e *env) compare(ctx context.Context, f *topologyFlags, declares bool) error {
	wanted, err := f.wanted(e.prefix())
	if err != nil {
		return err
	}
	for i := range wanted {
		wanted[i].AllowUnprotectedQuorum = f.allowUnprotected
	}
	var report deadletter.Report
	created := "to create"
	err = e.withRabbitMQ(ctx, func(store *deadletter.Store) (err error) {
		if !declares {
			report, err = store.Compare(ctx, wanted...)
		} else if report, err = store.Apply(ctx, wanted...); err == nil {
			created = "created"
		}
		return err
	})
	if err != nil && !errors.Is(err, deadletter.ErrConflict) {
		return err
	}
	if err := e.printPlan(report, created); err != nil {
		return err
	}
	switch {
	case err != nil, !declares && report.Drifted():
		return exit(codeDrift, err)
	case declares && len(report.Of(deadletter.Policy)) > 0:
		return exit(codeDrift, errors.New("everything is declared, and a policy is in the way: change it as the "+
			"plan shows"))
	}
	return nil
}

var signs = map[deadletter.Kind]struct {
	sign   string
	colour text.Color
}{deadletter.Create: {"+", text.FgGreen}, deadletter.Conflict: {"!", text.FgRed}, deadletter.Policy: {"~",
	text.FgYellow}, deadletter.Note: {"i", text.FgCyan}}

// printPlan prints the differences.
func (e *env) printPlan(report deadletter.Report, created string) error {
	if e.json {
		return e.printJSON(struct {
			deadletter.Report
			Drift bool `json:"drift"`
		}{report, report.Drifted()})
	}
	var s strings.Builder
	for _, d := range report.Differences {
		head := d
		head.Reason, head.Advice = "", ""
		_, _ = fmt.Fprintf(&s, "%s %s\n", e.paint(signs[d.Kind].colour, signs[d.Kind].sign), safe(head.String()))
		for _, more := range []string{d.Reason, d.Advice} {
			if more != "" {
				_, _ = fmt.Fprintf(&s, "    %s\n", safe(more))
			}
		}
	}
	count := func(kind deadletter.Kind) int { return len(report.Of(kind)) }
	if report.Drifted() {
		_, _ = fmt.Fprintf(&s, "%s %s, %s, %s.\n", thousands(count(deadletter.Create)), created,
			plural(count(deadletter.Conflict), "conflict", "conflicts"),
			plural(count(deadletter.Policy), "policy in the way", "policies in the way"))
	} else {
		s.WriteString("No drift: everything is there.\n")
	}
	_, err := io.WriteString(e.stdout, s.String())
	return err
}

func newExportTopologyCommand(e *env) *cobra.Command {
	var (
		f                  wantedFlags
		permissions, byKey bool
	)
	flags := f.with(variables{"permissions": &permissions, "breaker-key": &byKey})
	return e.command("topology export", flags, func(context.Context, []string) error {
		wanted, err := f.wanted(e.prefix())
		if err != nil {
			return err
		}
		if permissions {
			return e.printPermissions(wanted, byKey)
		}
		all, err := definitions.Merge(topologiesOf(wanted)...)
		if err != nil {
			return err
		}
		encoder := json.NewEncoder(jsonLines{e.stdout})
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(all)
	})
}

// role is the permissions of one kind of user: regular expressions, as rabbitmqctl set_permissions gets them.
type role struct{ name, about, tag, configure, write, read string }

// rolesOf returns the least permissions of each kind of user. byKey states that handlers have Breaker.Key.
func rolesOf(wanted []deadletter.Wanted, byKey bool) []role {
	var works, groups, prefixes []string
	const ofOrder = `|\.order(\..*)?`
	partitions, commands, answers := "", "", []string(nil)
	if byKey {
		commands = ofOrder
	}
	for _, w := range wanted {
		works = append(works, regexp.QuoteMeta(w.Queue.Name))
		if w.Topology.TierGroup != "" {
			groups = append(groups, regexp.QuoteMeta(w.Topology.TierGroup))
		}
		if w.Topology.Partitions > 0 {
			partitions, commands = ofOrder, ofOrder
		}
		prefixes = append(prefixes, regexp.QuoteMeta(w.Topology.Prefix))
	}
	if commands != "" {
		answers = []string{`amq\.default`}
	}
	work, group, prefix := oneOf(works), oneOf(groups), oneOf(prefixes)
	dead, orphans := work+regexp.QuoteMeta(deadletter.QueueOf("")), prefix+`\.orphans`
	own := []string{work + `(\.dead|\.` + prefix + `\..*` + partitions + `)?`,
		prefix + `(\.return(\.any)?|\.orphans` + commands + `)?`}
	if group != "" {
		own = append(own, group+`\.`+prefix+`(\..*)?`)
	}
	all, lock := pattern(own...), `(`+dead+`|`+orphans+`)\.lock`
	return []role{
		{"app", "An app that declares its topology. To publish to a work queue it also needs write on " +
			"amq.default, or on its own exchange.", "", all, pattern(slices.Concat(own, answers)...), all},
		{"viewer", "wmretry dead list, show, export, and status.", "management", "^$", "^$", pattern(dead, orphans)},
		{"redriver", "wmretry dead, all commands, and status.", "management", pattern(lock),
			pattern(`amq\.default`, prefix+`(\.(return|orphans))?`), pattern(work+`(\.dead)?`, orphans)},
		{"operator", "all commands of wmretry.", "management", pattern(slices.Concat(own, []string{lock})...),
			pattern(slices.Concat(own, []string{`amq\.default`})...), all},
	}
}

func oneOf(names []string) string {
	slices.Sort(names)
	if names = slices.Compact(names); len(names) < 2 {
		return strings.Join(names, "")
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
func (e *env) printPermissions(wanted []deadletter.Wanted, byKey bool) error {
	vhost := "/"
	for _, address := range append(e.flags.urls, os.Getenv(urlVariable), os.Getenv(rabbitVariable)) {
		if uri, err := amqp091.ParseURI(address); err == nil {
			vhost = uri.Vhost
			break
		}
	}
	var s strings.Builder
	for _, r := range rolesOf(wanted, byKey) {
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
