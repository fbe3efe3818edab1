// Package orders is an ordinary Watermill app that bills orders, and a demo around it: some orders fail, wait on retry tiers,
// come back when they are due, and are dead-lettered when their retries are used up. The app is the same on every Pub/Sub.
//
// app.go shows how an app uses the library, and provider.go a handler that fails. The other files are the demo.
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

// Options are the settings of a run.
type Options struct {
	Messages int // how many orders to bill
	Schedule backoff.Schedule
	Verbose  bool // log lines are printed between the rows of the table
}

// Run bills the orders on the backend, prints what happens to each, and closes the backend. It returns an error if an order is
// neither billed nor dead-lettered.
func Run(ctx context.Context, opts Options, backend *Backend, out io.Writer, logger watermill.LoggerAdapter) error {
	orders, err := newOrders(opts.Messages)
	if err != nil {
		return errors.Join(err, backend.Close())
	}
	provider := newProvider(opts.Messages, opts.Schedule)
	timeline := newTimeline(out, opts.Verbose)
	journal := newJournal(orders, timeline)
	app := newApp(backend, provider.bill, journal, logger)

	_, _ = fmt.Fprintf(out, "%s\n%d orders go to %s, where a handler bills them.\n"+
		"A failed order waits on retry tiers: %s, then it is dead-lettered. A row appears when it is back.\n\n",
		backend.Name, opts.Messages, backend.Topic, opts.Schedule)
	timeline.header()

	letters := &letterReader{}
	published, runErr := app.bill(ctx, opts, backend, orders, journal, letters)
	timeline.clear()
	if runErr == nil {
		letters.wait(ctx, journal.deadCount())
	}
	closeErr := errors.Join(app.close(), letters.close(), backend.Close())
	timeline.clear()
	if ctx.Err() != nil || len(published) == 0 {
		return errors.Join(runErr, closeErr)
	}
	return errors.Join(runErr, closeErr, report(out, backend.Topic, published, journal, letters.all))
}

// bill publishes the orders and waits until each is settled. It returns the UUIDs of the published orders.
func (a *app) bill(
	ctx context.Context, opts Options, backend *Backend, orders []*message.Message, j *journal, letters *letterReader,
) ([]string, error) {
	if err := a.start(); err != nil {
		return nil, err
	}
	if err := letters.open(backend); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, timeLimit(opts.Schedule, len(orders)))
	defer cancel()
	published, err := publish(limited, backend, orders)
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
			return published, errors.Join(errors.New("the router stopped before all orders were settled"), err)
		case <-limited.Done():
			return published, j.unsettled()
		}
	}
}

// publish publishes the orders, as another service would. It has nothing to do with the retries. It stops waiting when the
// context ends, because a broker that has raised an alarm confirms nothing.
func publish(ctx context.Context, backend *Backend, orders []*message.Message) ([]string, error) {
	var published []string
	done := make(chan error, 1)
	go func() {
		for _, msg := range orders {
			if err := backend.Retries.Publisher().Publish(backend.Topic, msg); err != nil || ctx.Err() != nil {
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
			return published, fmt.Errorf("only %d of %d orders were published: %w", len(published), len(orders), err)
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
		return errors.New("orders are lost, or were both billed and dead-lettered: see the last line")
	}
	return nil
}

// timeLimit returns the time for the slowest order: one that waits for the whole schedule, or one with a requested delay.
func timeLimit(schedule backoff.Schedule, orders int) time.Duration {
	longest := margin + time.Duration(orders)*marginPerOrder
	for _, delay := range append(slices.Clone(schedule), 2*slices.Max(schedule)) {
		if longest > math.MaxInt64-delay {
			return math.MaxInt64
		}
		longest += delay
	}
	return longest
}
