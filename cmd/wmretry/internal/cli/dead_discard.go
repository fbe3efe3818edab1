package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
)

// discard is the flags of dead discard.
type discard struct {
	letters.Discard
	env    *env
	yes    bool
	export string
}

func newDiscardCommand(e *env) *cobra.Command {
	d := &discard{env: e}
	flags := filterFlags(&d.Filter, variables{"limit": &d.Limit, "dry-run": &d.DryRun, "yes,y": &d.yes,
		"export": &d.export})
	c := e.command("dead discard "+e.of(), flags, e.on(flags, d.validate, d.run))
	c.Hidden = e.kind.Keeps
	return c
}

// validate reports all faults of the options, and whether there is a terminal to ask on.
func (d *discard) validate() error {
	if err := d.Discard.Validate(); err != nil || d.yes || d.DryRun || d.env.inTerminal && d.env.errTerminal {
		return err
	}
	return errors.New("discard removes letters for good, and there is no terminal to ask on: use --yes" +
		only(d.export == "", ", and --export FILE to keep a copy") + ". --dry-run counts them")
}

func (d *discard) run(ctx context.Context, at place, _ []string) error {
	options, beyond, exported := d.Discard, "", ""
	if !d.yes && !d.DryRun {
		confirmed, err := d.confirm(ctx, at)
		if err != nil || confirmed == 0 {
			return err
		}
		if options.Limit = confirmed; confirmed != d.Limit { // not those that have died meanwhile
			beyond = "the number that you confirmed"
		}
	}
	if d.export != "" && !d.DryRun {
		file, err := newFile(d.export)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		options.Export, exported = file, d.export
	}
	r := d.env.report("discard", at.queue, at.queue, asRedrive(options))
	r.Beyond, r.Export = cmp.Or(beyond, r.Beyond), exported
	options.Progress = r.meter.show
	summary, err := at.Discard(ctx, at.queue, options)
	return r.end(ctx, summary).finish(err)
}

// asRedrive returns what a discard has of the options of a redrive.
func asRedrive(d letters.Discard) letters.Redrive {
	return letters.Redrive{Filter: d.Filter, Limit: d.Limit, DryRun: d.DryRun}
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

// confirm counts the letters and asks. It returns how many may be removed.
func (d *discard) confirm(ctx context.Context, at place) (int, error) {
	options, e := d.Discard, d.env
	options.DryRun = true
	meter := e.meter("count letters in "+safe(at.queue), "selected", asRedrive(options))
	options.Progress = meter.show
	counted, err := at.Discard(ctx, at.queue, options)
	if err != nil {
		return 0, e.explain(err)
	}
	if counted.Done == 0 {
		_, _ = fmt.Fprintf(e.stdout, "no letter in %s is to be removed\n", safe(at.queue))
		return 0, e.nothing(at.queue, options.Filter)
	}
	copied := "without a copy"
	if d.export != "" {
		copied = "with a copy in " + safe(d.export)
	}
	answer, err := e.ask(ctx, fmt.Sprintf("Remove %s of %s in %s for good, %s? [y]es, [n]o: ", thousands(counted.Done),
		plural(counted.Total, "letter", "letters"), safe(e.at(at.queue)), copied))
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
