package redrive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

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

// An Export writes letters to a file, one line of JSON each.
type Export struct {
	To      io.Writer
	Letters int // how many were written

	line []byte
}

// Add writes a letter.
func (e *Export) Add(letter Item) (err error) {
	if e.line, err = letter.AppendLine(e.line[:0]); err == nil {
		_, err = e.To.Write(e.line)
	}
	if err == nil {
		e.Letters++
	}
	return err
}

// Unfinished is the error of an import that ends before the last line.
type Unfinished struct {
	Err  error
	Done string // what to do about the lines that are imported
}

func (u *Unfinished) Error() string { return u.Err.Error() + "; " + u.Done }
func (u *Unfinished) Unwrap() error { return u.Err }

// numbers are those of lines that are imported. Several are in flight, so they do not come in their order.
type numbers struct {
	last   int          // all up to this one are
	beyond map[int]bool // and these
}

func (n *numbers) add(number int) {
	if n.beyond == nil {
		n.beyond = map[int]bool{}
	}
	n.beyond[number] = true
	for ; n.beyond[n.last+1]; n.last++ {
		delete(n.beyond, n.last+1)
	}
}

// unfinished returns the error of an import with what to do about the lines that are imported: an import does not look
// for letters that are there already.
func (n *numbers) unfinished(err error) error {
	var all []string
	switch {
	case n.last > 1:
		all = append(all, fmt.Sprintf("1 to %d", n.last))
	case n.last == 1:
		all = append(all, "1")
	}
	for _, number := range slices.Sorted(maps.Keys(n.beyond)) {
		all = append(all, strconv.Itoa(number))
	}
	if err == nil || len(all) == 0 {
		return err
	}
	return &Unfinished{err, "imported already: line " + strings.Join(all, ", ") + "; remove these from the file before " +
		"you import it again"}
}

// Lines imports the lines of a file until the first one that fails. Several may be in flight, as of a redrive. Where
// letters are imported its error is Unfinished.
func (r *Run) Lines(ctx context.Context, from io.Reader, parse func(text []byte) (Line, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reader := bufio.NewReaderSize(from, 1<<16)
	var imported numbers
	for number := 1; ctx.Err() == nil; number++ {
		text, err := readLine(reader)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && len(bytes.TrimSpace(text)) == 0 {
			r.Change(func(*letters.Summary) { imported.add(number) })
			continue
		}
		var line Line
		if err == nil {
			line, err = parse(text)
		}
		if err == nil {
			r.Change(func(s *letters.Summary) { s.Total++ })
			err = r.flights.Run(ctx, line.Size, func() {
				if !r.Options.DryRun {
					if err := line.Put(ctx); err != nil {
						cancel(fmt.Errorf("line %d: %w", number, err))
						return
					}
				}
				r.Change(func(s *letters.Summary) { s.Done++; imported.add(number) })
			})
		}
		if err != nil {
			cancel(fmt.Errorf("line %d: %w", number, err)) // after a line that failed, it has no effect
			break
		}
	}
	r.flights.Wait()
	if r.Options.DryRun || r.summary.Done == 0 {
		return context.Cause(ctx)
	}
	return imported.unfinished(context.Cause(ctx))
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
