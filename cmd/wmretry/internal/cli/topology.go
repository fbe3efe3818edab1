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
	c := &cobra.Command{
		Use:   "topology",
		Short: "Compare, declare and export what apps declare",
		Long: `Compares what apps declare with what is on the broker, declares it, and exports it. What apps declare
is described by flags, or by a file for several schedules or groups: one entry, or a list of entries, with the fields
of Config.

  [
    {"queues": ["orders", "billing"], "schedule": "1s 5s 25s*3 10m"},
    {"queues": ["mails"], "queue_arguments": {"x-queue-type": "quorum"}, "tier_group": "slow", "schedule": "1m 1h",
     "extra_tiers": "24h", "jitter": 0.2, "prefix": "retry", "queue_type": "quorum",
     "work_queue_mode": "protect",
     "dead_letters": {"max_length": 100000, "max_age": "30d"},
     "tier_arguments": {"x-max-length": 1000000}, "dead_letter_arguments": {}},
    {"queues": ["payments"], "partitions": 8, "prefetch": 512}
  ]

Only "queues" is required, and "schedule" or, for handlers with Order.Partitions, "partitions" and "prefetch". Their
flags are --queue, --schedule, --partitions and --prefetch. The schedule must have the delays of all handlers;
extra_tiers has those of rules.`,
	}
	c.AddCommand(newPlanCommand(e), newApplyCommand(e), newExportTopologyCommand(e))
	return group(c)
}

func newPlanCommand(e *env) *cobra.Command {
	return e.newComparison(false, &cobra.Command{
		Use:   "plan",
		Short: "Show what would be declared against what is there; exit code 2 on drift",
		Long: `Shows the differences between what apps declare and what is on the broker, and changes nothing:

  +  is missing; apply declares it
  !  exists with other arguments, which RabbitMQ cannot change; the reason and what to do are below it
  ~  a policy makes the queue lose messages, or shortens a delay
  i  is no drift, and good to know

It needs the management API. The exit code is 2 if there is a difference of the first three kinds.`,
		Example: `  wmretry topology plan --queue orders --schedule "1s 5s 25s"
  wmretry topology plan --file topology.json --json`,
	})
}

func newApplyCommand(e *env) *cobra.Command {
	return e.newComparison(true, &cobra.Command{
		Use:   "apply",
		Short: "Declare what is missing, as an app does at its start",
		Long: `Declares what is missing. Where an object exists with other arguments it declares nothing, and the exit
code is 2. It removes nothing and changes no policy. It may be repeated.`,
		Example: `  wmretry topology apply --queue orders --schedule "1s 5s 25s"
  wmretry topology apply --file topology.json`,
	})
}

// newComparison completes a command that compares, and declares or does not.
func (e *env) newComparison(declares bool, c *cobra.Command) *cobra.Command {
	var f topologyFlags
	f.wantedFlags.add(c)
	c.Flags().BoolVar(&f.allowUnprotected, "allow-unprotected-quorum", false,
		"accept quorum work queues without a dead-letter exchange on RabbitMQ 4.0 to 4.2: a policy protects them")
	c.Args = cobra.NoArgs
	c.RunE = func(c *cobra.Command, _ []string) error { return e.compare(c.Context(), &f, declares) }
	return c
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
		f           wantedFlags
		permissions bool
		byKey       bool
	)
	c := &cobra.Command{
		Use:   "export",
		Short: "Print definitions as JSON, or permissions",
		Long: `Prints what apps declare, without a connection to a broker, as JSON of one virtual host: POST it to
/api/definitions/<vhost>, or rabbitmqadmin definitions import. --permissions prints rabbitmqctl commands with the least
permissions of an app, a viewer, a redriver and an operator. With --breaker-key they are also those that handlers with
Breaker.Key and wmretry key need.`,
		Example: `  wmretry topology export --queue orders --schedule "1s 5s 25s" > definitions.json
  wmretry topology export --queue payments --partitions 8 --permissions`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
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
		},
	}
	f.add(c)
	c.Flags().BoolVar(&permissions, "permissions", false, "print the permissions of users in place of the definitions")
	c.Flags().BoolVar(&byKey, "breaker-key", false, "handlers have Breaker.Key, for --permissions")
	return c
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
