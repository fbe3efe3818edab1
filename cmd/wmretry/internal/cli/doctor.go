package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"

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
			shown.WriteString(e.text("examined", of))
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
