package deadletter

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// Import puts the letters that Export wrote back into their queues, each confirmed: every byte, property and header
// is as before. The queues must exist. Of the options it uses To, the queue that gets the letters in place of those
// that they were exported from, DryRun and Progress, whose total is not known before the end. At a line that it cannot
// read, or a letter that it cannot publish, it ends with an error that has the number of the line: the letters of the
// lines before are imported.
func (s *Store) Import(ctx context.Context, from io.Reader, options letters.Redrive) (letters.Summary, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return letters.Summary{}, err
	}
	defer end()
	sender, err := s.newSender()
	if err != nil {
		return letters.Summary{}, err
	}
	defer sender.close()
	run := redrive.New(letters.Redrive{DryRun: options.DryRun, Progress: options.Progress}, mostInFlight)
	sender.run = run
	err = run.Lines(ctx, from, func(text []byte) (redrive.Line, error) {
		l, err := parseLine(text)
		if to := options.To; to != "" && to != l.Queue {
			l.Queue, l.Exchange, l.RoutingKey = to, "", to
		}
		return redrive.Line{Size: len(l.Publishing.Body), Put: func(ctx context.Context) error {
			err := sender.put(ctx, s.prefix, l)
			if isDoubtful(err) {
				run.Change(func(s *letters.Summary) { s.Doubtful++ })
			}
			return err
		}}, err
	})
	return run.Finish(err, false)
}

// put publishes a letter to its queue.
func (s *sender) put(ctx context.Context, prefix naming.Prefix, l line) error {
	to := l.destination(prefix)
	err := s.send(ctx, to, l.Publishing)
	itself := destination{key: l.Queue}
	if to != itself && l.Queue != prefix.Orphans() && errors.Is(err, publish.ErrUnroutable) {
		err = s.send(ctx, itself, l.Publishing)
	}
	if errors.Is(err, publish.ErrUnroutable) {
		return fmt.Errorf("%w: %q, start its app, or name another queue: %w", letters.ErrNoQueue, l.Queue, err)
	}
	return err
}

// destination returns where a letter goes: through the exchange that it came from, because the library's reader of
// dead letters restores the properties of those only. The key of an orphan says where it goes back to.
func (l line) destination(prefix naming.Prefix) destination {
	work := naming.WorkQueueOf(l.Queue)
	switch {
	case l.Queue == prefix.Orphans() && l.RoutingKey != l.Queue:
		return destination{prefix.Orphans(), l.RoutingKey}
	case l.Exchange != "" && l.RoutingKey == naming.DeadKey(work) && l.Queue != work:
		return destination{l.Exchange, l.RoutingKey}
	}
	return destination{key: l.Queue}
}
