package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
)

type discardFlags struct {
	filterFlags
	options letters.Discard
	yes     bool
	export  string
}

func newDiscardCommand(e *env) *cobra.Command {
	var f discardFlags
	check := func() error { return f.check(e) }
	flags := f.with(variables{"limit": &f.options.Limit, "dry-run": &f.options.DryRun, "yes,y": &f.yes,
		"export": &f.export})
	c := e.command("dead discard "+e.of(), flags, e.on(check, func(ctx context.Context, at place, _ []string) error {
		return e.discard(ctx, at, &f)
	}))
	c.Hidden = e.kind.Keeps
	return c
}

func (f *discardFlags) check(e *env) (err error) {
	if f.options.Filter, err = f.filter(); err != nil {
		return err
	}
	if err := ofFlags(f.options.Validate()); err != nil {
		return err
	}
	if !f.yes && !f.options.DryRun && (!e.inTerminal || !e.errTerminal) {
		use := "--yes, and --export FILE to keep a copy"
		if f.export != "" {
			use = "--yes"
		}
		return usage("discard removes letters for good, and there is no terminal to ask on: use %s. --dry-run counts them",
			use)
	}
	return nil
}

func (e *env) discard(ctx context.Context, at place, f *discardFlags) error {
	options := f.options
	report := newReport("discard", at.queue, options.DryRun, options.Limit)
	report.filter = options.Filter
	if !f.yes && !options.DryRun {
		confirmed, err := e.askDiscard(ctx, at, f)
		if err != nil || confirmed == 0 {
			return err
		}
		if options.Limit = confirmed; confirmed != f.options.Limit { // not those that have died meanwhile
			report.limit, report.beyond = confirmed, "the number that you confirmed"
		}
	}
	if f.export != "" && !options.DryRun {
		file, err := newFile(f.export)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		options.Export, report.Export = file, f.export
	}
	err := report.run(ctx, e, at.queue, func(show func(letters.Progress)) (letters.Summary, error) {
		options.Progress = show
		return at.Discard(ctx, at.queue, options)
	})
	return report.finish(e, err)
}

// newFile creates a file that must not be there: it may have the only copy of letters.
func newFile(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil,
			usage("%s is there already, and may have the only copy of other letters: name another file", safe(name))
	}
	return file, err
}

// askDiscard counts the letters and asks. It returns how many may be removed.
func (e *env) askDiscard(ctx context.Context, at place, f *discardFlags) (int, error) {
	options := f.options
	options.DryRun = true
	meter := e.meter("count letters in "+safe(at.queue), "selected")
	meter.some = selects(options.Filter)
	options.Progress = meter.show
	counted, err := at.Discard(ctx, at.queue, options)
	meter.stop()
	if err != nil {
		return 0, e.explain(err)
	}
	if counted.Done == 0 {
		_, _ = fmt.Fprintf(e.stdout, "no letter in %s is to be removed\n", safe(at.queue))
		return 0, e.nothing(at.queue, options.Filter)
	}
	copied := "without a copy"
	if f.export != "" {
		copied = "with a copy in " + safe(f.export)
	}
	answer, err := e.ask(ctx, fmt.Sprintf("Remove %s of %s in %s for good, %s? [y]es, [n]o: ", thousands(counted.Done),
		plural(counted.Total, "letter", "letters"), safe(at.queue), copied))
	if err != nil {
		return 0, err
	}
	if answer = strings.ToLower(answer); answer == "y" || answer == "yes" {
		return counted.Done, nil
	}
	_, _ = fmt.Fprintln(e.stderr, "nothing is removed")
	return 0, nil
}

// ask asks a question on the terminal and returns the line of the answer.
func (e *env) ask(ctx context.Context, question string) (string, error) {
	_, _ = fmt.Fprint(e.stderr, question)
	type answer struct {
		line string
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		line, err := bufio.NewReader(e.stdin).ReadString('\n')
		answered <- answer{strings.TrimSpace(line), err}
	}()
	select {
	case a := <-answered:
		if a.err != nil && a.line == "" {
			return "", fmt.Errorf("there is no answer: %w", a.err)
		}
		return a.line, nil
	case <-ctx.Done():
		_, _ = fmt.Fprintln(e.stderr)
		return "", ctx.Err()
	}
}
