package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/doctor"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

func newDoctorCommand(e *env) *cobra.Command {
	var endpoints, ignored []string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what is wrong, and say what to do; exit code 1 with findings",
		Long: `Looks at the virtual host by the management API, and at the health of apps, and prints what is wrong and
what to do. It also sees what an app can come from, such as queues with a TTL, and names the steps. It changes nothing
and reads no letter. The output has no password and no letter: it can be a part of an issue.

--health is the URL of an endpoint with the JSON of retry.Health (docs/operations.md). With it, a handler that is
paused and an app that is down are told apart.

The exit code is 0 without findings, 1 with findings, and 2 where it cannot look. The rules are
` + strings.Join(doctor.Names(), ", ") + `.`,
		Example: `  wmretry doctor
  wmretry doctor --health http://shop-1:8080/health --health http://shop-2:8080/health
  wmretry doctor --ignore support,permissions --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			err := e.doctor(c.Context(), endpoints, ignored)
			if exitCode(err) == codeFailed && !errors.As(err, new(*exitError)) {
				return exit(codeBlind, err)
			}
			return err
		},
	}
	flags := c.Flags()
	flags.StringArrayVar(&endpoints, "health", nil, "URL of an app's health, without a login; may be repeated")
	flags.StringSliceVar(&ignored, "ignore", nil, "rule to leave out; may be repeated")
	_ = c.RegisterFlagCompletionFunc("ignore", cobra.FixedCompletions(doctor.Names(),
		cobra.ShellCompDirectiveNoFileComp))
	return c
}

// examined is the report of the command.
type examined struct {
	WMRetry string `json:"wmretry"`
	Library string `json:"library"`
	Go      string `json:"go"`
	doctor.Report
}

func (e *env) doctor(ctx context.Context, endpoints, ignored []string) error {
	for _, address := range endpoints {
		if err := doctor.ValidateEndpoint(address); err != nil {
			return usage("--health: %w", err)
		}
	}
	for _, rule := range ignored {
		if !slices.Contains(doctor.Names(), rule) {
			return usage("--ignore: there is no rule %q; the rules are %s", rule, strings.Join(doctor.Names(), ", "))
		}
	}
	return e.withStore(ctx, func(store *deadletter.Store) error {
		config, err := e.config()
		if err != nil {
			return err
		}
		snapshot, err := doctor.Read(ctx, config, store, endpoints)
		if err != nil {
			return err
		}
		of := examined{version(buildInfo()), libraryVersion(buildInfo()), runtime.Version(),
			doctor.Examine(snapshot, ignored...)}
		var shown bytes.Buffer
		if e.json {
			err = e.jsonLine(&shown, of)
		} else {
			e.printExamined(&shown, of)
		}
		if _, also := io.WriteString(e.stdout, e.scrub(shown.String())); err == nil {
			err = also
		}
		if err == nil && len(of.Findings) > 0 {
			return exit(codeFailed, nil)
		}
		return err
	})
}

func (e *env) printExamined(to *bytes.Buffer, of examined) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(to, format+"\n", args...) }
	line("versions: wmretry %s, library %s, %s", safe(of.WMRetry), safe(of.Library), of.Go)
	b := of.Broker
	line("RabbitMQ %s (%s), Erlang %s", safe(b.Version), of.Support, safe(b.Erlang))
	line("virtual host %s, user %s (%s)", shellWord(of.Vhost), shellWord(b.User), safe(strings.Join(b.Tags, ", ")))
	for _, l := range e.statusLines(of.Status, true) {
		line("%s", l)
	}
	for _, queue := range slices.Sorted(maps.Keys(of.Policies)) {
		definition, _ := json.Marshal(of.Policies[queue])
		line("policies of %s: %s", safe(queue), safe(string(definition)))
	}
	for _, app := range of.Apps {
		if app.Health != nil {
			health, _ := json.Marshal(app.Health)
			line("health of %s: %s", safe(app.URL), safe(string(health)))
		}
	}
	for _, unseen := range of.Unseen {
		line("not looked at: %s", safe(unseen))
	}
	print := func(colour text.Color, title string, all []doctor.Finding) {
		if len(all) > 0 {
			line("\n%s", e.paint(text.Bold, title))
		}
		for _, f := range all {
			line("%s %s\n    %s", e.paint(colour, f.Rule), safe(f.Subject), safe(f.What))
			for _, do := range f.Do {
				line("    - %s", safe(do))
			}
		}
	}
	print(text.FgRed, plural(len(of.Findings), "finding", "findings"), of.Findings)
	print(text.FgYellow, "Ways in: these are no faults", of.WaysIn)
	if len(of.Findings) == 0 {
		line("\nNothing is wrong.")
	}
}
