package orders

import (
	"fmt"
	"io"
	"os"
	"time"
)

const (
	liveTick  = time.Second
	plainTick = 3 * time.Second
)

// timeline prints one row for each failure. On a terminal it also prints the progress below the rows.
type timeline struct {
	out  io.Writer
	live bool // a terminal, where the last line can be rewritten
}

// newTimeline returns a timeline that rewrites its last line only on a terminal without log lines.
func newTimeline(out io.Writer, verbose bool) *timeline {
	file, ok := out.(*os.File)
	if !ok || verbose || os.Getenv("TERM") == "dumb" {
		return &timeline{out: out}
	}
	info, err := file.Stat()
	return &timeline{out: out, live: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (t *timeline) header() { t.row("order", "failure", "wanted", "measured", "why") }

func (t *timeline) waited(order, failure int, wanted, measured time.Duration, why string) {
	t.row(order, failure, wanted, measured.Round(time.Millisecond), why)
}

func (t *timeline) deadLettered(order, failure int, reason, why string) {
	t.row(order, failure, "-", "-", "dead-lettered, "+reason+": "+why)
}

func (t *timeline) row(order, failure, wanted, measured, why any) {
	t.clear()
	_, _ = fmt.Fprintf(t.out, "%5v  %7v  %8v  %8v  %v\n", order, failure, wanted, measured, why)
}

// status rewrites the last line, on a terminal only.
func (t *timeline) status(text func() string) {
	if t.live {
		t.clear()
		_, _ = fmt.Fprint(t.out, text())
	}
}

// every returns the interval between two ticks.
func (t *timeline) every() time.Duration {
	if t.live {
		return liveTick
	}
	return plainTick
}

func (t *timeline) tick(text func() string) {
	if t.live {
		t.status(text)
		return
	}
	_, _ = fmt.Fprintf(t.out, "... %s\n", text())
}

func (t *timeline) clear() {
	if t.live {
		_, _ = fmt.Fprint(t.out, "\r\x1b[K")
	}
}
