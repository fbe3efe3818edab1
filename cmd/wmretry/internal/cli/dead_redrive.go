package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tieredretry/watermill-retry/cmd/wmretry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
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
	if options.Canary > 0 && !options.DryRun {
		if name := noConsumer(ctx, at, options.To); name != "" {
			return fmt.Errorf("%s has no consumer: its handler is paused, or its app is down. A canary that no handler calls "+
				"cannot die. Resume or start it, or leave out --canary. No letter was sent", safe(name))
		}
	}
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

// consumerLooks is how often a canary looks for a consumer, once a second. A backend shows none for a moment where a
// process is busy, a group is rebalanced, or a handler goes on after a pause.
const consumerLooks = 10

// noConsumer returns what a canary goes to, where the backend goes on to show that no process consumes it.
func noConsumer(ctx context.Context, at place, to string) string {
	for looks := 1; ; looks++ {
		name := unconsumed(ctx, at, to)
		if name == "" || looks == consumerLooks || pauses.Sleep(ctx, time.Second) != nil {
			return name
		}
	}
}

// unconsumed returns what a canary goes to, where the backend now shows no consumer of it. The work queue of an orphan,
// or of a letter in another queue, is not known before.
func unconsumed(ctx context.Context, at place, to string) string {
	if at.Rabbit == nil {
		all, _ := at.Looker.Waiting(ctx)
		for _, w := range all {
			if to == "" && w.Topic == at.queue && w.Consumers != nil && *w.Consumers == 0 {
				return w.Name
			}
		}
		return ""
	}
	work, dead := strings.CutSuffix(at.queue, deadletter.QueueOf(""))
	if !dead && to == "" {
		return ""
	}
	work = cmp.Or(to, work)
	status, err := at.Rabbit.Status(ctx, work)
	if err == nil && len(status.Queues) == 1 && !status.Queues[0].Missing && status.Queues[0].Consumers == 0 {
		return "the queue " + work
	}
	return ""
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
