package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// standard is the name of stdin or stdout as a file.
const standard = "-"

func newExportCommand(l *letterCommand) *cobra.Command {
	var (
		f     filterFlags
		to    string
		force bool
	)
	c := l.command(&cobra.Command{
		Use:   "export",
		Short: "Write letters to a file, with every byte, property and typed header",
		Long: `Writes letters to a file, one line of JSON each, and removes none. Import puts them back: every byte,
property and header is as before. The file appears when it is complete and on the disk. It is readable only by you:
letters may have personal data.`,
		Example: `  wmretry dead export orders -o orders.jsonl
  wmretry dead export orders --reason timeout -o - | gzip > orders.jsonl.gz`,
		RunE: func(c *cobra.Command, args []string) error {
			filter, err := f.filter()
			if err != nil {
				return err
			}
			if to == "" {
				return usage("export needs -o FILE, or -o - for stdout")
			}
			return l.export(c.Context(), args, filter, &f, to, force)
		},
	})
	f.add(c, true)
	c.Flags().StringVarP(&to, "output", "o", "", "the file, or - for stdout (required)")
	c.Flags().BoolVar(&force, "force", false, "replace the file")
	_ = c.MarkFlagFilename("output", "jsonl")
	return c
}

func (l *letterCommand) export(
	ctx context.Context, args []string, filter letters.Filter, f *filterFlags, to string, force bool,
) error {
	queue, _ := l.queue(args)
	if to != standard && !force {
		if _, err := os.Lstat(to); err == nil {
			return usage("%s is there already: name another file, or replace it with --force", safe(to))
		}
	}
	store, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	start := time.Now()
	var n int
	write := func(out io.Writer) error {
		meter := l.meter("export of "+safe(queue), "written")
		defer meter.stop()
		n, err = store.Export(ctx, queue, filter, &counter{to: out, start: start, meter: meter})
		return err
	}
	if to == standard {
		err = write(l.stdout)
	} else {
		err = whole(to, force, write)
	}
	if err != nil {
		if to == standard && n > 0 {
			err = fmt.Errorf("the output ends after %s: %w", plural(n, "letter", "letters"), err)
		}
		return l.failed(ctx, queue, err)
	}
	if n == 0 {
		if err := l.nothing(queue, f); err != nil {
			return err
		}
	}
	summary := l.stdout
	if to == standard {
		summary = l.stderr
	}
	if l.json {
		return l.jsonLine(summary, map[string]any{
			"command": "export", "queue": queue, "done": n, "export": to, "seconds": time.Since(start).Seconds(),
		})
	}
	_, err = fmt.Fprintf(summary, "%s of %s written to %s\n", plural(n, "letter", "letters"), safe(queue), safe(to))
	return err
}

// whole writes a file that appears only when it is complete.
func whole(name string, force bool, write func(io.Writer) error) (err error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() { // a pipe or a device must not be replaced
		file, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}()
	if err := write(file); err != nil {
		return err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return err
	}
	if force {
		return os.Rename(file.Name(), name)
	}
	// A link replaces no file that has appeared meanwhile. Some file systems have no links.
	switch err := os.Link(file.Name(), name); {
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("%s has appeared meanwhile: name another file, or replace it with --force", safe(name))
	case err != nil:
		return os.Rename(file.Name(), name)
	}
	return nil
}

// counter counts the lines that pass, for the meter.
type counter struct {
	to    io.Writer
	start time.Time
	meter *meter
	lines int
}

func (c *counter) Write(data []byte) (int, error) {
	n, err := c.to.Write(data)
	c.lines += bytes.Count(data[:n], []byte{'\n'})
	c.meter.count(c.lines, time.Since(c.start))
	return n, err
}

func newImportCommand(l *letterCommand) *cobra.Command {
	var options deadletter.Import
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Put exported letters back into their queues",
		Long: `Puts letters that export or discard --export wrote back into the queues that they were in: every byte,
property and header is as before. FILE can be - for stdin. An import does not look for letters that are in the queue
already: two imports of a file make two letters of each line.`,
		Example: `  wmretry dead import orders.jsonl
  wmretry dead import orders.jsonl --dry-run
  zcat orders.jsonl.gz | wmretry dead import - --queue orders`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%s needs one FILE, or - for stdin", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return l.importFile(c.Context(), args[0], options) },
	}
	if !l.orphans {
		c.Flags().StringVar(&options.Queue, "queue", "", "work queue whose dead letters they become (default: the "+
			"queue that each letter was in)")
		_ = c.RegisterFlagCompletionFunc("queue", l.completeQueue)
	} else {
		c.Example = "  wmretry orphans import orphans.jsonl"
	}
	c.Flags().BoolVar(&options.DryRun, "dry-run", false, "read all lines, and put nothing back")
	return c
}

func (l *letterCommand) importFile(ctx context.Context, name string, options deadletter.Import) error {
	from := io.Reader(l.stdin)
	if name != standard {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		from = file
	}
	if l.orphans {
		options.Queue = l.prefix() + ".orphans"
	} else if options.Queue != "" {
		options.Queue = l.queueOf(options.Queue)
	}
	report := newReport("import", options.Queue, options.DryRun, 0)
	return l.withStore(ctx, func(store *deadletter.Store) error {
		err := report.run(ctx, l.env, name, func(show func(letters.Progress)) (letters.Summary, error) {
			options.Progress = show
			return store.Import(ctx, from, options)
		})
		return l.finish(ctx, report, err, &filterFlags{})
	})
}
