package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// newComparison returns a command that prints how what the flags describe differs from what is there, and declares what
// is missing, or does not.
func (e *env) newComparison(path string, declares bool) *cobra.Command {
	var (
		f                wantedFlags
		allowUnprotected bool
	)
	flags := f.with(variables{"allow-unprotected-quorum": &allowUnprotected})
	return e.command(path, flags, func(ctx context.Context, _ []string) error {
		wanted, err := f.wanted(e.prefix())
		if err != nil {
			return err
		}
		for i := range wanted {
			wanted[i].AllowUnprotectedQuorum = allowUnprotected
		}
		return e.compare(ctx, wanted, declares)
	})
}

// compare prints the differences, and declares what is missing, or does not.
func (e *env) compare(ctx context.Context, wanted []deadletter.Wanted, declares bool) error {
	var report deadletter.Report
	compare := (*deadletter.Store).Compare
	if declares {
		compare = (*deadletter.Store).Apply
	}
	err := e.withRabbitMQ(ctx, func(store *deadletter.Store) (err error) {
		report, err = compare(store, ctx, wanted...)
		return err
	})
	if err != nil && !errors.Is(err, deadletter.ErrConflict) {
		return err
	}
	shown := plan{report, report.Drifted(), declares && err == nil}
	if err := e.output(shown, func() string { return e.text("plan", shown) }); err != nil {
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

// plan is the differences of a plan.
type plan struct {
	deadletter.Report
	Drift   bool `json:"drift"`
	Created bool `json:"-"` // what is missing was created
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
type role struct{ Name, Tag, Configure, Write, Read string }

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
		{"app", "", all, pattern(slices.Concat(own, answers)...), all},
		{"viewer", "management", "^$", "^$", pattern(dead, orphans)},
		{"redriver", "management", pattern(lock), pattern(`amq\.default`, prefix+`(\.(return|orphans))?`),
			pattern(work+`(\.dead)?`, orphans)},
		{"operator", "management", pattern(slices.Concat(own, []string{lock})...),
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
	_, err := io.WriteString(e.stdout, e.text("permissions", struct {
		Vhost string
		Roles []role
	}{vhost, rolesOf(wanted, byKey)}))
	return err
}
