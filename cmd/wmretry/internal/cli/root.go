// Package cli has the commands of wmretry.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
)

// Main runs the command of this process and returns its exit code.
func Main() int {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// After the first signal the next one ends the process, as without a handler.
	context.AfterFunc(interrupted, stop)
	return run(interrupted, newEnv(), os.Args[1:])
}

// Commands returns the commands, for their manual and their completions.
func Commands() *cobra.Command { return newRoot(newEnv()) }

// run runs a command. The end of the context is an interruption by the user.
func run(interrupted context.Context, e *env, args []string) int {
	e.kind, e.args = kindOf(args), args
	root := newRoot(e)
	root.SetArgs(args)
	root.SetIn(e.stdin)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	err := root.ExecuteContext(interrupted)
	code := exitCode(err)
	switch {
	case err == nil:
	case interrupted.Err() != nil && (errors.Is(err, context.Canceled) || code == codeFailed):
		// A summary is printed already.
		code = codeInterrupted
		_, _ = fmt.Fprintln(e.stderr, "wmretry:", interruption(err))
	case !e.prepared:
		code = codeUsage
		_, _ = fmt.Fprintf(e.stderr, "wmretry: %s\n`wmretry --help` lists the commands, and each command has "+
			"--help with examples.\n", e.printable(err.Error()))
	default:
		if text := e.failure(err); text != "" {
			_, _ = fmt.Fprintf(e.stderr, "wmretry: %s\n", e.printable(text))
		}
	}
	return code
}

// interruption is the text of an error after Ctrl-C.
func interruption(err error) string {
	var part *redrive.Unfinished
	if errors.As(err, &part) {
		return "interrupted; " + part.Done
	}
	return "interrupted"
}

// failure is the text of an error. A user who has named no management API learns which one was asked.
func (e *env) failure(err error) string {
	text := err.Error()
	if e.guesses && strings.HasPrefix(text, "the management API at ") {
		text += "; this address is that of the broker with its port plus 10,000: name another one with --management or " +
			"AMQP_MANAGEMENT_URL"
	}
	return text
}

func newRoot(e *env) *cobra.Command {
	e.help = helpOn(e.kind)
	root := e.group("", newDeadCommand(e), newStatusCommand(e), newDoctorCommand(e), newUICommand(e), newVersionCommand(e))
	root.Use, root.Version = "wmretry", version(buildInfo())
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(e.wrongFlag)
	root.PersistentPreRun = func(*cobra.Command, []string) { e.prepare() }
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 120"))
	e.globalFlags().addTo(root.PersistentFlags())
	if table := root.PersistentFlags().Lookup("table"); table != nil {
		table.Hidden = e.kind.Name != "PostgreSQL" // ui can have PostgreSQL as another backend than the first
	}
	for _, of := range []*cobra.Command{
		newOrderCommand(e), newKeyCommand(e), e.group("tiers", newDrainCommand(e), newPruneCommand(e)),
		e.group("topology", e.newComparison("topology plan", false), e.newComparison("topology apply", true),
			newExportTopologyCommand(e)),
	} {
		if e.kind != backend.RabbitMQ {
			of = &cobra.Command{Use: of.Name(), Hidden: true, DisableFlagParsing: true,
				RunE: func(c *cobra.Command, _ []string) error {
					return usage("%s is a command for RabbitMQ, and the address is of %s", c.Name(), e.kind.Name)
				}}
		}
		root.AddCommand(of)
	}
	e.describeFlags(root)
	root.InitDefaultCompletionCmd()
	return root
}

// The exit codes. help.txt explains them.
const (
	codeDone        = 0
	codeFailed      = 1
	codeDrift       = 2
	codeBlind       = 2 // doctor did not see all
	codeRedead      = 3
	codeNothing     = 4
	codeUsage       = 64
	codeInterrupted = 130
)

// exitError ends the command with a code. Where err is nil, everything is printed already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit returns an error that ends the command with a code.
func exit(code int, err error) error { return &exitError{code, err} }

// usage returns an error about an argument or flag.
func usage(format string, args ...any) error { return exit(codeUsage, fmt.Errorf(format, args...)) }

func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return codeDone
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, letters.ErrRedead):
		return codeRedead
	}
	return codeFailed
}

func newVersionCommand(e *env) *cobra.Command {
	return e.command("version", nil, func(context.Context, []string) error {
		_, err := fmt.Fprint(e.stdout, versions(buildInfo()))
		return err
	})
}

func buildInfo() *debug.BuildInfo {
	info, _ := debug.ReadBuildInfo()
	return cmp.Or(info, &debug.BuildInfo{})
}

func version(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "(devel)") }

// library is the module whose dead letters the command reads.
const library = "github.com/tieredretry/watermill-retry"

func libraryVersion(info *debug.BuildInfo) string {
	for _, m := range info.Deps {
		if m.Path == library && m.Replace == nil {
			return m.Version
		}
	}
	return "(devel)"
}

// versions returns a line for each version.
func versions(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit := cmp.Or(settings["vcs.revision"], "unknown: built outside of a clone, or with -buildvcs=false")
	if settings["vcs.modified"] == "true" {
		commit += ", with changes"
	}
	return fmt.Sprintf("wmretry %s\ncommit  %s\nlibrary %s\ngo      %s %s/%s\n",
		version(info), commit, libraryVersion(info), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
