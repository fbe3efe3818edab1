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

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/doctor"
)

func newDoctorCommand(e *env) *cobra.Command {
	var endpoints []string
	var ignored list
	flags := variables{"health": &endpoints, "ignore": &ignored}
	return e.command("doctor", flags, func(ctx context.Context, _ []string) error {
		err := e.doctor(ctx, endpoints, ignored)
		if exitCode(err) == codeFailed && !errors.As(err, new(*exitError)) {
			return exit(codeBlind, err)
		}
		return err
	})
}

// examined has the versions of the command, too.
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
		if all := doctor.NamesOn(e.kind.Name); !slices.Contains(all, rule) {
			return usage("--ignore: there is no rule %q; the rules are %s", rule, strings.Join(all, ", "))
		}
	}
	return e.withStore(ctx, func(store *backend.Store) error {
		of := examined{version(buildInfo()), libraryVersion(buildInfo()), runtime.Version(), doctor.Report{}}
		var err error
		if store.Rabbit != nil {
			var snapshot doctor.Snapshot
			if snapshot, err = doctor.Read(ctx, store.Config.Rabbit(), store.Rabbit, endpoints); err == nil {
				of.Report = doctor.Examine(snapshot, ignored...)
			}
		} else {
			of.Report, err = doctor.Look(ctx, store.Looker, endpoints, ignored)
		}
		if err != nil {
			return err
		}
		var shown bytes.Buffer
		if !e.json {
			e.printExamined(&shown, of)
		} else if err := e.jsonLine(&shown, of); err != nil {
			return err
		}
		_, err = io.WriteString(e.stdout, e.scrub(shown.String()))
		if err == nil && len(of.Findings) > 0 {
			return exit(codeFailed, nil)
		}
		return err
	})
}

func line(to *bytes.Buffer, format string, args ...any) { _, _ = fmt.Fprintf(to, format+"\n", args...) }

func (e *env) printExamined(to *bytes.Buffer, of examined) {
	line(to, "versions: wmretry %s, library %s, %s", safe(of.WMRetry), safe(of.Library), of.Go)
	var ways []doctor.Finding
	if of.Other != nil {
		line(to, "%s\n%s", safe(of.Server), e.waitingTable(of.Waiting))
	} else {
		ways = of.WaysIn
		b := of.Broker
		line(to, "RabbitMQ %s (%s), Erlang %s", safe(b.Version), of.Support, safe(b.Erlang))
		line(to, "virtual host %s, user %s (%s)", shellWord(of.Vhost), shellWord(b.User), safe(strings.Join(b.Tags, ", ")))
		for _, l := range e.statusLines(of.Status, true) {
			line(to, "%s", l)
		}
		for _, queue := range slices.Sorted(maps.Keys(of.Policies)) {
			definition, _ := json.Marshal(of.Policies[queue])
			line(to, "policies of %s: %s", safe(queue), safe(string(definition)))
		}
	}
	for _, app := range of.Apps {
		if app.Health != nil {
			health, _ := json.Marshal(app.Health)
			line(to, "health of %s: %s", safe(app.URL), safe(string(health)))
		}
	}
	for _, unseen := range of.Unseen {
		line(to, "not looked at: %s", safe(unseen))
	}
	print := func(colour text.Color, title string, all []doctor.Finding) {
		if len(all) > 0 {
			line(to, "\n%s", e.paint(text.Bold, title))
		}
		for _, f := range all {
			line(to, "%s %s\n    %s", e.paint(colour, f.Rule), safe(f.Subject), safe(f.What))
			for _, do := range f.Do {
				line(to, "    - %s", safe(do))
			}
		}
	}
	print(text.FgRed, plural(len(of.Findings), "finding", "findings"), of.Findings)
	print(text.FgYellow, "Ways in: these are no faults", ways)
	if len(of.Findings) == 0 {
		line(to, "\nNothing is wrong.")
	}
}
