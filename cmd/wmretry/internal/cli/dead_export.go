package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/letters"
)

// standard is the name of stdin or stdout as a file.
const standard = "-"

func newExportCommand(e *env) *cobra.Command {
	var filter letters.Filter
	var to string
	flags := filterFlags(&filter, variables{"output,o": &to})
	validate := func() error {
		return cmp.Or(filter.Validate(), faults.If(to == "", "export needs -o FILE, or -o - for stdout"))
	}
	return e.command("dead export "+e.of(), flags, e.on(flags, validate,
		func(ctx context.Context, at place, _ []string) error { return e.export(ctx, at, filter, to) }))
}

func (e *env) export(ctx context.Context, at place, filter letters.Filter, to string) error {
	start := time.Now()
	out, summary := io.Writer(jsonLines{e.stdout}), e.stderr
	if to != standard {
		file, err := newFile(to)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		out, summary = file, e.stdout
	}
	n, err := at.Export(ctx, at.queue, filter, out)
	if file, is := out.(*os.File); is && to != standard {
		err = errors.Join(err, file.Sync())
	}
	switch {
	case err != nil && to != standard:
		return errors.Join(e.explain(err), os.Remove(to))
	case err != nil && n > 0:
		return fmt.Errorf("the output ends after %s: %w", plural(n, "letter", "letters"), err)
	case err != nil:
		return e.explain(err)
	}
	if e.json {
		err = e.jsonLine(summary, map[string]any{
			"command": "export", "queue": at.queue, "done": n, "export": to, "seconds": time.Since(start).Seconds(),
		})
	} else {
		_, err = fmt.Fprintf(summary, "%s of %s written to %s\n", plural(n, "letter", "letters"), safe(at.queue), safe(to))
	}
	if err == nil && n == 0 {
		return e.nothing(at.queue, filter)
	}
	return err
}

// jsonLines writes whole lines of JSON without what could change a terminal. JSON reads them as the same values.
type jsonLines struct{ to io.Writer }

func (w jsonLines) Write(lines []byte) (int, error) {
	if _, err := io.WriteString(w.to, escapeJSON(string(lines))); err != nil {
		return 0, err
	}
	return len(lines), nil
}

func newImportCommand(e *env) *cobra.Command {
	var options letters.Redrive
	flags := variables{"queue": &options.To, "dry-run": &options.DryRun}
	c := e.command("dead import FILE", flags, func(ctx context.Context, args []string) error {
		return e.importFile(ctx, args[0], options)
	})
	_ = c.RegisterFlagCompletionFunc("queue", e.completeQueue)
	return c
}

func (e *env) importFile(ctx context.Context, name string, options letters.Redrive) error {
	from := io.Reader(e.stdin)
	if name != standard {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	return e.withStore(ctx, func(store *backend.Store) (err error) {
		if options.To != "" {
			if options.To, err = e.queue(ctx, store, options.To); err != nil {
				return err
			}
		}
		r := e.report("import", options.To, name, options)
		options.Progress = r.meter.show
		summary, err := store.Import(ctx, from, options)
		return r.end(ctx, summary).finish(err)
	})
}
