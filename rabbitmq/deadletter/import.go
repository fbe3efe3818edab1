package deadletter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
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

// Import puts the letters that Export wrote back into their queues, each confirmed: every byte, property and header is as before. The
// queues must exist. At a line that it cannot read, or a letter that it cannot publish, it ends with an error that has the number of the
// line: the letters of the lines before are imported.
func (s *Store) Import(ctx context.Context, from io.Reader, options Import) (letters.Summary, error) {
	r := s.newRun(options.Queue, letters.Filter{}, 0, options.DryRun, options.Progress)
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
	sender.waiting = r.wait
	return r.finish(r.importLines(ctx, bufio.NewReaderSize(from, 1<<16), sender, options))
}

func (r *run) importLines(ctx context.Context, from *bufio.Reader, sender *sender, options Import) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var flights sync.WaitGroup
	places := make(chan struct{}, mostInFlight)
	for number := 1; ; number++ {
		text, err := readText(from)
		if errors.Is(err, io.EOF) {
			break
		}
		var l line
		if err == nil && len(strings.TrimSpace(string(text))) == 0 {
			continue
		}
		if err == nil {
			l, err = parseLine(text)
		}
		if err != nil {
			cancel(fmt.Errorf("line %d: %w", number, err))
			break
		}
		if options.Queue != "" && options.Queue != l.Queue {
			l.Queue, l.Exchange, l.RoutingKey = options.Queue, "", options.Queue
		}
		r.change(func() { r.summary.Total++ })
		if options.DryRun {
			r.change(func() { r.summary.Done++ })
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		flights.Add(1)
		go func() {
			defer func() { <-places; flights.Done() }()
			if err := sender.put(ctx, r.store.prefix, l); err != nil {
				if isDoubtful(err) {
					r.change(func() { r.summary.Doubtful++ })
				}
				cancel(fmt.Errorf("line %d: %w", number, err))
				return
			}
			r.change(func() { r.summary.Done++ })
		}()
	}
	flights.Wait()
	return context.Cause(ctx)
}

// put publishes a letter to its queue: through the exchange that it came from, because the library's reader of dead letters restores the
// properties of those only.
func (s *sender) put(ctx context.Context, prefix naming.Prefix, l line) error {
	if l.Queue == prefix.Orphans() && l.RoutingKey != l.Queue { // the key says where it goes back to
		return s.send(ctx, destination{prefix.Orphans(), l.RoutingKey}, l.Publishing)
	}
	if l.Exchange != "" && l.RoutingKey == naming.DeadKey(naming.WorkQueueOf(l.Queue)) && l.Queue != naming.WorkQueueOf(l.Queue) {
		err := s.send(ctx, destination{l.Exchange, l.RoutingKey}, l.Publishing)
		if !errors.Is(err, publisher.ErrUnroutable) {
			return err
		}
	}
	err := s.send(ctx, destination{key: l.Queue}, l.Publishing)
	if errors.Is(err, publisher.ErrUnroutable) {
		return fmt.Errorf("%w: %q, start its app, or name another queue: %w", letters.ErrNoQueue, l.Queue, err)
	}
	return err
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
