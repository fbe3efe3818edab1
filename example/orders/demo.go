// Package orders is an ordinary Watermill app that bills orders, and the show around it: some orders fail, wait on retry tiers,
// come back when they are due, and are dead-lettered when their retries are used up. It is the same app on every Pub/Sub.
//
// What the library asks of an app is in app.go, and what a failing handler looks like in provider.go. The rest is the show.
package orders

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	margin         = 20 * time.Second
	marginPerOrder = 50 * time.Millisecond
)

// Options are what a run may be told.
type Options struct {
	Messages int // how many orders to bill
	Schedule backoff.Schedule
	Verbose  bool // log lines come between the rows of the table
}

// Run bills the orders on the backend, tells what became of each, and closes the backend. It fails where an order is neither
// billed nor dead.
func Run(ctx context.Context, opts Options, backend *Backend, out io.Writer, logger watermill.LoggerAdapter) error {
	orders, err := newOrders(opts.Messages)
	if err != nil {
		return errors.Join(err, backend.Close())
	}
	provider := newProvider(opts.Messages, opts.Schedule)
	timeline := newTimeline(out, opts.Verbose)
	journal := newJournal(orders, timeline)
	app, err := newApp(backend, provider.bill, journal, logger)
	if err != nil {
		return errors.Join(err, backend.Close())
	}

	handlers := "a handler bills"
	if n := len(backend.handlers()); n > 1 {
		handlers = fmt.Sprintf("%d handlers bill", n)
	}
	_, _ = fmt.Fprintf(out, "%s\n%d orders go to %s, where %s them.\n"+
		"One that fails waits on retry tiers: %s, then it is dead-lettered. A row appears when it is back.\n\n",
		backend.Name, opts.Messages, backend.Topic, handlers, opts.Schedule)
	timeline.header()

	letters := &letterbox{}
	published, runErr := app.bill(ctx, opts, backend, orders, journal, letters)
	timeline.clear()
	if runErr == nil {
		letters.wait(ctx, journal.dying())
	}
	closeErr := errors.Join(app.close(), letters.close(), backend.Close())
	timeline.clear()
	if ctx.Err() != nil || len(published) == 0 {
		return errors.Join(runErr, closeErr)
	}
	return errors.Join(runErr, closeErr, report(out, backend.Topic, published, journal, letters.all))
}

// bill publishes the orders and waits until each is settled; it returns the identities of those published.
func (a *app) bill(
	ctx context.Context, opts Options, backend *Backend, orders []*message.Message, j *journal, letters *letterbox,
) ([]string, error) {
	if err := a.start(); err != nil {
		return nil, err
	}
	if err := letters.open(backend); err != nil {
		return nil, err
	}
	patient, cancel := context.WithTimeout(ctx, patience(opts.Schedule, len(orders)))
	defer cancel()
	published, err := publish(patient, backend, orders)
	if err != nil {
		return published, err
	}

	ticker := time.NewTicker(j.timeline.every())
	defer ticker.Stop()
	for {
		select {
		case <-j.settled:
			return published, nil
		case <-ticker.C:
			j.tick()
		case err := <-a.stopped:
			a.stopped <- err
			return published, errors.Join(errors.New("the router has stopped"), err)
		case <-patient.Done():
			return published, j.unsettled()
		}
	}
}

// publish is what any service does that takes orders; it is no part of the retries. It gives up waiting when the context
// ends: a broker in an alarm confirms nothing.
func publish(ctx context.Context, backend *Backend, orders []*message.Message) ([]string, error) {
	var published []string
	done := make(chan error, 1)
	go func() {
		for _, msg := range orders {
			if err := backend.Publisher.Publish(backend.Topic, msg); err != nil || ctx.Err() != nil {
				done <- err
				return
			}
			published = append(published, msg.UUID)
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err != nil {
			return published, fmt.Errorf("%d of %d orders were published: %w", len(published), len(orders), err)
		}
		return published, nil
	case <-ctx.Done():
		return nil, errors.New("not all orders were published and confirmed")
	}
}

// report prints the dead letters and, as the last line, the summary.
func report(out io.Writer, topic string, published []string, j *journal, letters []letter) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	printLetters(out, topic, letters, j.numbers)
	dead := map[string]int{}
	for _, l := range letters {
		dead[l.uuid]++
	}
	s := summarize(published, j.billed, dead, j.late)
	_, _ = fmt.Fprintln(out, s)
	if !s.complete() {
		return errors.New("the orders do not add up")
	}
	return nil
}

// patience is how long the slowest order may take: the one that waits out the whole schedule, or the one with a wish.
func patience(schedule backoff.Schedule, orders int) time.Duration {
	longest := margin + time.Duration(orders)*marginPerOrder
	for _, delay := range append(slices.Clone(schedule), 2*slices.Max(schedule)) {
		if longest > math.MaxInt64-delay {
			return math.MaxInt64
		}
		longest += delay
	}
	return longest
}
