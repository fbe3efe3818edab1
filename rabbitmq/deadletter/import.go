package deadletter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

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
	flights := newFlights()
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
		err = flights.run(ctx, len(l.Publishing.Body), func() {
			if err := sender.put(ctx, r.store.prefix, l); err != nil {
				if isDoubtful(err) {
					r.change(func() { r.summary.Doubtful++ })
				}
				cancel(fmt.Errorf("line %d: %w", number, err))
				return
			}
			r.change(func() { r.summary.Done++ })
		})
		if err != nil {
			break
		}
	}
	flights.group.Wait()
	return context.Cause(ctx)
}

// put publishes a letter to its queue.
func (s *sender) put(ctx context.Context, prefix naming.Prefix, l line) error {
	to := l.destination(prefix)
	err := s.send(ctx, to, l.Publishing)
	itself := destination{key: l.Queue}
	if to != itself && l.Queue != prefix.Orphans() && errors.Is(err, publisher.ErrUnroutable) {
		err = s.send(ctx, itself, l.Publishing)
	}
	if errors.Is(err, publisher.ErrUnroutable) {
		return fmt.Errorf("%w: %q, start its app, or name another queue: %w", letters.ErrNoQueue, l.Queue, err)
	}
	return err
}

// putAll publishes letters of one queue in their order, and returns the error of each. After an error it publishes them
// again, one after the other: then some may be there twice.
func (s *sender) putAll(ctx context.Context, prefix naming.Prefix, lines []line) []error {
	messages, failed := make([]*message.Message, len(lines)), make([]error, len(lines))
	for i := range lines {
		messages[i] = messageOf(ctx, &lines[i].Publishing)
	}
	to := lines[0].destination(prefix)
	other := func(l line) bool { return l.destination(prefix) != to }
	if !slices.ContainsFunc(lines, other) && s.publisher.Publish(to.topic(), messages...) == nil {
		return failed
	}
	for i, l := range lines {
		failed[i] = s.put(ctx, prefix, l)
	}
	return failed
}

// destination returns where a letter goes: through the exchange that it came from, because the library's reader of dead
// letters restores the properties of those only. The key of an orphan says where it goes back to.
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
