package deadletter

import (
	"context"
	"io"
	"iter"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

var _ letters.Store = (*Store)(nil)

// QueueOf returns the dead-letter queue of a work queue.
func QueueOf(work string) string { return naming.DeadQueue(work) }

// A Store is the dead letters and orphans of one virtual host. Its methods get the name of the queue in which the letters are: see
// QueueOf and Orphans. It is safe for concurrent use. Each call of a method has channels of its own.
type Store struct {
}

// Open returns a Store. It does not wait for the broker: the methods do, until the end of their context. A nil logger logs nothing.
func Open(config Config, logger watermill.LoggerAdapter) (*Store, error) { panic("not yet") }

// Orphans returns the name of the queue of the orphans: <prefix>.orphans.
func (s *Store) Orphans() string { panic("not yet") }

// Browse implements letters.Store.
func (s *Store) Browse(ctx context.Context, queue string, filter letters.Filter) iter.Seq2[*letters.Letter, error] {
	panic("not yet")
}

// Redrive implements letters.Store.
func (s *Store) Redrive(ctx context.Context, queue string, options letters.Redrive) (letters.Summary, error) {
	panic("not yet")
}

// Discard implements letters.Store.
func (s *Store) Discard(ctx context.Context, queue string, options letters.Discard) (letters.Summary, error) {
	panic("not yet")
}

// Export writes the letters of a queue, one line of JSON each, and removes none. It returns how many it wrote. See Import.
func (s *Store) Export(ctx context.Context, queue string, filter letters.Filter, to io.Writer) (int, error) {
	panic("not yet")
}

// Import configures Store.Import.
type Import struct {
	// Queue gets the letters. The default is, for each letter, the queue that it was exported from.
	Queue string
	// DryRun reads all lines and publishes none.
	DryRun bool
	// Progress is as in letters.Redrive.
	Progress func(letters.Progress)
}

// Import puts the letters that Export wrote back into their queues: every byte, property and header is as before. It returns an error
// for a line that it cannot read, with the number of the line; the letters of the lines before are imported.
func (s *Store) Import(ctx context.Context, from io.Reader, options Import) (letters.Summary, error) {
	panic("not yet")
}

// Close implements letters.Store.
func (s *Store) Close() error { panic("not yet") }
