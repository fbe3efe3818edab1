package orders

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	howMany      = 40 // orders
	tick         = 3 * time.Second
	milliseconds = "2006-01-02T15:04:05.000Z07:00"
)

// demo bills the orders on the backend and prints what happens to each. It returns an error if an order is neither
// billed nor dead-lettered.
func demo(ctx context.Context, opts Options, backend *Backend, out io.Writer, logger watermill.LoggerAdapter) error {
	orders, err := newOrders(howMany)
	if err != nil {
		return err
	}
	j := newJournal(orders, out)
	router := newApp(backend, newProvider(opts.Schedule).bill, j, logger)
	_, _ = fmt.Fprintf(out, "%s\n%d orders go to %s, where a handler bills them.\n"+
		"A failed order waits on retry tiers: %s, then it is dead-lettered. A row appears when it is back.\n\n",
		backend.Name, howMany, backend.Topic, opts.Schedule)
	j.row("order", "failure", "wanted", "measured", "why")

	limit := time.Minute // and the time for the slowest order, several times
	for _, delay := range opts.Schedule {
		limit += 3 * delay
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running(): // queues and tiers exist
	case err := <-stopped:
		return errors.Join(errors.New("the router did not start"), err)
	case <-limited.Done():
		return errors.New("the router did not start in time")
	}
	runErr := billed(limited, backend, orders, j)
	closeErr := errors.Join(router.Close(), <-stopped)
	if ctx.Err() != nil {
		return errors.Join(runErr, closeErr)
	}
	return errors.Join(runErr, closeErr, j.report(backend.Topic))
}

// billed publishes the orders, as another service would, and returns when each is billed or a dead letter.
func billed(ctx context.Context, backend *Backend, orders []*message.Message, j *journal) error {
	published := make(chan error, 1)
	go func() { published <- backend.Retries.Publisher().Publish(backend.Topic, orders...) }()
	progress := time.NewTicker(tick)
	defer progress.Stop()
	for j.open() > 0 {
		select {
		case err := <-published:
			if err != nil {
				return fmt.Errorf("not all orders were published: %w", err)
			}
			published = nil
		case <-j.changed:
		case <-progress.C:
			j.progress()
		case <-ctx.Done():
			return fmt.Errorf("%d orders are neither billed nor dead-lettered: %w", j.open(), ctx.Err())
		}
	}
	return nil
}

// report prints the dead letters and, as the last line, the summary.
func (j *journal) report(topic string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = fmt.Fprintf(j.out, "\nDead letters of %s: %d\n", topic, len(j.letters))
	for _, l := range j.letters {
		record := l.Record
		table := tabwriter.NewWriter(j.out, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintf(table, "\n  order\t%d\n", j.numbers[l.MessageUUID])
		for _, field := range []struct {
			name  string
			value any
		}{
			{"failures", record.Failures},
			{"dead reason", record.DeadReason},
			{"first failed at", record.FirstFailedAt.Format(milliseconds)},
			{"last failed at", record.LastFailedAt.Format(milliseconds)},
			{"reason", record.Reason},
			{"error type", record.ErrorType},
			{"topic", record.Topic},
			{"handler", record.Handler},
		} {
			_, _ = fmt.Fprintf(table, "  %s\t%v\n", field.name, field.value)
		}
		_ = table.Flush()
	}
	s := j.summary()
	_, _ = fmt.Fprintf(j.out, "\n%s\n", s)
	if s.lost > 0 || s.published != s.processed+s.dead {
		return errors.New("orders are lost, or were both billed and dead-lettered: see the last line")
	}
	return nil
}
