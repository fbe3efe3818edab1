package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/letters"
)

type redriveFlags struct {
	filterFlags
	options letters.Redrive
}

func newRedriveCommand(e *env) *cobra.Command {
	var f redriveFlags
	o := &f.options
	flags := f.with(variables{
		"dry-run": &o.DryRun, "limit": &o.Limit, "rate": reads(&o.Rate, rate), "canary": &o.Canary,
		"canary-wait": &o.CanaryWait, "max-redead": reads(&o.MaxRedead, share), "to": &o.To, "again": &o.Again, "by": &o.By,
		"note": &o.Note,
	})
	c := e.command("dead redrive "+e.of(), flags, e.on(f.check, func(ctx context.Context, at place, _ []string) error {
		return e.redrive(ctx, at, f.options)
	}))
	c.Hidden = e.kind.Keeps
	return c
}

func (f *redriveFlags) check() (err error) {
	if f.options.Filter, err = f.filter(); err != nil {
		return err
	}
	return ofFlags(f.options.Validate())
}

// ofRabbitMQ returns a text of RabbitMQ only.
func (e *env) ofRabbitMQ(text string) string {
	if e.kind == backend.RabbitMQ {
		return text
	}
	return ""
}

// redrive runs a redrive, and prints its summary in any case.
func (e *env) redrive(ctx context.Context, at place, options letters.Redrive) error {
	start := time.Now()
	report := newReport("redrive", at.queue, options.DryRun, options.Limit)
	report.filter = options.Filter
	err := report.run(ctx, e, at.queue, func(show func(letters.Progress)) (letters.Summary, error) {
		options.Progress = show
		return at.Redrive(ctx, at.queue, options)
	})
	if errors.Is(err, letters.ErrRedead) {
		report.Causes = deaths(ctx, at, start)
	}
	return report.finish(e, err)
}

// deathsWithin bounds the search for the causes of deaths.
const deathsWithin = 30 * time.Second

// deaths returns why letters that were redriven since a time have died again.
func deaths(ctx context.Context, at place, since time.Time) []letters.Group {
	ctx, cancel := context.WithTimeout(ctx, deathsWithin)
	defer cancel()
	since = since.Add(-time.Millisecond) // the history has milliseconds
	var groups letters.Groups
	for letter, err := range at.Browse(ctx, at.queue, letters.Filter{}) {
		if err != nil {
			break
		}
		redrives := letter.Redriven.Redrives
		if len(redrives) > 0 && redrives[len(redrives)-1].At.After(since) {
			groups.Add(letter)
		}
	}
	return groups.Sorted()
}
