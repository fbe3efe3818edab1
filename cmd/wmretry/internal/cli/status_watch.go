package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"
)

// watch shows the status until the context ends. An error of the broker is shown in its place.
func (e *env) watch(ctx context.Context, f *statusFlags, read *statusReader) error {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	screen := e.outTerminal && !e.json
	if screen {
		_, _ = fmt.Fprint(e.stdout, "\x1b[?25l\x1b[2J") // hides the cursor
		defer func() { _, _ = fmt.Fprint(e.stdout, "\x1b[?25h") }()
	}
	lastError := ""
	for {
		status, err := read.status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			lastError = ""
		case !read.asked && read.plain == nil: // it has never worked
			return err
		}
		switch {
		case screen && err != nil:
			e.draw([]string{safe(e.scrub(err.Error())), "", "Tries again every " + f.interval.String() +
				". Ctrl-C ends."})
		case err != nil:
			if text := err.Error(); text != lastError {
				lastError = text
				_, _ = fmt.Fprintf(e.stderr, "wmretry: %s; tries again\n", e.scrub(text))
			}
		case e.json:
			if err := e.printJSON(status); err != nil {
				return err
			}
		case screen:
			e.draw(e.statusLines(status, f))
		default:
			if _, err := fmt.Fprintf(e.stdout, "%s\n\n", strings.Join(e.statusLines(status, f), "\n")); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// draw draws lines over those of before. Those that do not fit are left out.
func (e *env) draw(lines []string) {
	if _, height, err := term.GetSize(int(os.Stdout.Fd())); err == nil && height > 2 && len(lines) > height-1 {
		more := len(lines) - (height - 2)
		lines = append(slices.Clone(lines[:height-2]),
			fmt.Sprintf("(%s more: the terminal is too low)", plural(more, "line", "lines")))
	}
	var s strings.Builder
	s.WriteString("\x1b[H")
	for _, line := range lines {
		s.WriteString(line + "\x1b[K\n")
	}
	s.WriteString("\x1b[J")
	_, _ = fmt.Fprint(e.stdout, s.String())
}
