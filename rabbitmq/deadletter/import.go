package deadletter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// maxLine bounds a line of an import in bytes. RabbitMQ's bodies have at most 512 MiB, and base64 adds a third.
const maxLine = 1 << 30

// Import configures Store.Import.
type Import struct {
	// Queue gets the letters. The default is, for each letter, the queue that it was exported from.
	Queue string
	// DryRun reads all lines and publishes none.
	DryRun bool
	// Progress is as in letters.Redrive. The total is not known before the end.
	Progress func(letters.Progress)
}

// Import puts the letters that Export wrote back into their queues, each confirmed: every byte, property and header
// is as before. The queues must exist. At a line that it cannot read, or a letter that it cannot publish, it ends
// with an error that has the number of the line: the letters of the lines before are imported.
func (s *Store) Import(ctx context.Context, from io.Reader, options Import) (letters.Summary, error) {
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
	i := &importing{Run: run, sender: sender, prefix: s.prefix, options: options}
	return run.Finish(i.lines(ctx, bufio.NewReaderSize(from, 1<<16)), false)
}

// importing is one call of Import.
type importing struct {
	*redrive.Run
	sender  *sender
	prefix  naming.Prefix
	options Import
}

// lines imports lines until the first one that fails.
func (i *importing) lines(ctx context.Context, from *bufio.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	flights := redrive.NewFlights(mostInFlight)
	for number := 1; ; number++ {
		text, err := readText(from)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(strings.TrimSpace(string(text))) == 0 {
			continue
		}
		var l line
		if err == nil {
			l, err = parseLine(text)
		}
		if err == nil {
			i.Change(func(s *letters.Summary) { s.Total++ })
			err = flights.Run(ctx, len(l.Publishing.Body), func() {
				if err := i.line(ctx, l); err != nil {
					cancel(fmt.Errorf("line %d: %w", number, err))
				}
			})
		}
		if err != nil {
			cancel(fmt.Errorf("line %d: %w", number, err)) // after a line that failed, it has no effect
			break
		}
	}
	flights.Wait()
	return context.Cause(ctx)
}

// line imports a letter, and counts what became of it.
func (i *importing) line(ctx context.Context, l line) error {
	if to := i.options.Queue; to != "" && to != l.Queue {
		l.Queue, l.Exchange, l.RoutingKey = to, "", to
	}
	var err error
	if !i.options.DryRun {
		err = i.sender.put(ctx, i.prefix, l)
	}
	i.Change(func(s *letters.Summary) {
		switch {
		case err == nil:
			s.Done++
		case isDoubtful(err):
			s.Doubtful++
		}
	})
	return err
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

// readText returns the next line. The last one may have no end.
func readText(from *bufio.Reader) (text []byte, err error) {
	for {
		part, err := from.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case len(text) > maxLine:
			return nil, fmt.Errorf("it has more than %d bytes", maxLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(text) > 0:
			return text, nil
		}
		return text, err
	}
}
