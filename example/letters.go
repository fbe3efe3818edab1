package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/publisher"
)

const milliseconds = "2006-01-02T15:04:05.000Z07:00"

// letter is a dead letter: the order and the story of its failures.
type letter struct {
	uuid   string
	record middleware.Record
}

// readLetters takes all messages from a dead-letter queue, and waits a little for as many as are expected.
func readLetters(ctx context.Context, uri, queue string, expected int) (letters []letter, err error) {
	err = withChannel(ctx, uri, func(channel *amqp091.Channel) error {
		for giveUp := time.Now().Add(5 * time.Second); ; {
			delivery, found, err := channel.Get(queue, true)
			switch {
			case err != nil:
				return fmt.Errorf("cannot read the dead letters: %w", err)
			case found:
				letters = append(letters, newLetter(delivery.Headers))
			case len(letters) >= expected || time.Now().After(giveUp):
				return nil
			default:
				time.Sleep(50 * time.Millisecond)
			}
		}
	})
	return letters, err
}

// newLetter reads a dead letter's headers: the metadata of the message, and so its record.
func newLetter(headers amqp091.Table) letter {
	metadata := message.Metadata{}
	for key, value := range headers {
		if text, ok := value.(string); ok {
			metadata[key] = text
		}
	}
	record, _ := middleware.ReadRecord(metadata)
	return letter{uuid: metadata[publisher.UUIDHeader], record: record}
}

func printLetters(out io.Writer, queue string, letters []letter, numbers map[string]int) {
	_, _ = fmt.Fprintf(out, "\nDead letters in %s: %d\n", queue, len(letters))
	for _, l := range letters {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintf(table, "\n  order\t%d\n", numbers[l.uuid])
		for _, field := range []struct {
			name  string
			value any
		}{
			{"failures", l.record.Failures},
			{"dead reason", l.record.DeadReason},
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
