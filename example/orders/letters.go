package orders

import (
	"context"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

const (
	milliseconds  = "2006-01-02T15:04:05.000Z07:00"
	letterTimeout = 5 * time.Second
	letterPause   = 20 * time.Millisecond
)

// letter is a dead letter: the order and its failure record.
type letter struct {
	uuid   string
	record retry.Record
}

// letterReader collects the dead letters.
type letterReader struct {
	mu     sync.Mutex
	all    []letter
	cancel context.CancelFunc
	done   chan struct{}
}

func (b *letterReader) open(backend *Backend) error {
	ctx, cancel := context.WithCancel(context.Background())
	messages, err := backend.DeadLetters.Subscribe(ctx, backend.DeadLetterTopic)
	if err != nil {
		cancel()
		return fmt.Errorf("cannot read the dead letters: %w", err)
	}
	b.cancel, b.done = cancel, make(chan struct{})
	go func() {
		defer close(b.done)
		for msg := range messages {
			record, _ := retry.ReadRecord(msg.Metadata)
			b.mu.Lock()
			b.all = append(b.all, letter{uuid: msg.UUID, record: record})
			b.mu.Unlock()
			msg.Ack()
		}
	}()
	return nil
}

// wait waits until the expected number of dead letters has arrived, for at most letterTimeout.
func (b *letterReader) wait(ctx context.Context, expected int) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	for ctx.Err() == nil {
		b.mu.Lock()
		n := len(b.all)
		b.mu.Unlock()
		if n >= expected {
			return
		}
		time.Sleep(letterPause)
	}
}

func (b *letterReader) close() error {
	if b.cancel == nil {
		return nil
	}
	b.cancel()
	select {
	case <-b.done:
		return nil
	case <-time.After(letterTimeout):
		return fmt.Errorf("the subscription to the dead letters did not end within %v", letterTimeout)
	}
}

func printLetters(out io.Writer, topic string, letters []letter, numbers map[string]int) {
	_, _ = fmt.Fprintf(out, "\nDead letters of %s: %d\n", topic, len(letters))
	for _, l := range letters {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintf(table, "\n  order\t%d\n", numbers[l.uuid])
		for _, field := range []struct {
			name  string
			value any
		}{
			{"failures", l.record.Failures},
			{"dead reason", string(l.record.DeadReason)},
			{"first failed at", l.record.FirstFailedAt.Format(milliseconds)},
			{"last failed at", l.record.LastFailedAt.Format(milliseconds)},
			{"reason", l.record.Reason},
			{"error type", l.record.ErrorType},
			{"topic", l.record.Topic},
			{"handler", l.record.Handler},
		} {
			_, _ = fmt.Fprintf(table, "  %s\t%v\n", field.name, field.value)
		}
		_ = table.Flush()
	}
	_, _ = fmt.Fprintln(out)
}
