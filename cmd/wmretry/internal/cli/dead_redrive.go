package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/letters"
)

func newRedriveCommand(e *env) *cobra.Command {
	var o letters.Redrive
	flags := filterFlags(&o.Filter, variables{
		"dry-run": &o.DryRun, "limit": &o.Limit, "rate": reads(&o.Rate, rate), "canary": &o.Canary,
		"canary-wait": &o.CanaryWait, "max-redead": reads(&o.MaxRedead, share), "to": &o.To, "again": &o.Again, "by": &o.By,
		"note": &o.Note,
	})
	validate := func() error { return o.Validate() }
	redrive := func(ctx context.Context, at place, _ []string) error { return e.redrive(ctx, at, o) }
	c := e.command("dead redrive "+e.of(), flags, e.on(flags, validate, redrive))
	c.Hidden = e.kind.Keeps
	return c
}

// redrive runs a redrive, and prints its summary in any case.
func (e *env) redrive(ctx context.Context, at place, options letters.Redrive) error {
	r := e.report("redrive", at.queue, at.queue, options)
	options.Progress = r.meter.show
	summary, err := at.Redrive(ctx, at.queue, options)
	r.end(ctx, summary) // the search for causes is no part of it
	if errors.Is(err, letters.ErrRedead) {
		r.Causes = deaths(ctx, at, r.meter.start)
	}
	return r.finish(err)
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
