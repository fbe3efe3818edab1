package redrive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tieredretry/watermill-retry/letters"
)

// maxLine bounds a line of an import in bytes. RabbitMQ's bodies have at most 512 MiB, and base64 adds a third.
const maxLine = 1 << 30

// A Line is a letter of a file.
type Line struct {
	Size int // the size of its body, in bytes
	// Put publishes the letter.
	Put func(ctx context.Context) error
}

// Lines imports the lines of a file until the first one that fails. Several may be in flight, as of a redrive.
func (r *Run) Lines(ctx context.Context, from io.Reader, parse func(text []byte) (Line, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reader := bufio.NewReaderSize(from, 1<<16)
	for number := 1; ctx.Err() == nil; number++ {
		text, err := readLine(reader)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		var line Line
		if err == nil {
			line, err = parse(text)
		}
		if err == nil {
			r.Change(func(s *letters.Summary) { s.Total++ })
			err = r.flights.Run(ctx, line.Size, func() {
				if err := r.put(ctx, line); err != nil {
					cancel(fmt.Errorf("line %d: %w", number, err))
				}
			})
		}
		if err != nil {
			cancel(fmt.Errorf("line %d: %w", number, err)) // after a line that failed, it has no effect
			break
		}
	}
	r.flights.Wait()
	return context.Cause(ctx)
}

func (r *Run) put(ctx context.Context, line Line) error {
	if !r.Options.DryRun {
		if err := line.Put(ctx); err != nil {
			return err
		}
	}
	r.Change(func(s *letters.Summary) { s.Done++ })
	return nil
}

// readLine returns the next line. The last one may have no end.
func readLine(from *bufio.Reader) (text []byte, err error) {
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
