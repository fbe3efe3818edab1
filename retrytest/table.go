package retrytest

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
)

const (
	// maxRows is how many attempts a table shows. It shows the first and the last of more.
	maxRows = 16
	// maxErrorText is how many characters of an error a table shows.
	maxErrorText = 120

	notDelivered = "not delivered yet"
)

// String returns the story as a table with one row for each attempt.
func (s *Story) String() string {
	var text strings.Builder
	for i, g := range s.groups {
		if i > 0 {
			text.WriteByte('\n')
		}
		table := newTable(&text)
		writeRow(table, "at", "handler", "took", "failure", "outcome", "why")
		omitted := len(g.attempts) - maxRows
		for i, a := range g.attempts {
			if omitted > 0 && i == maxRows/2 {
				writeRow(table, "...", fmt.Sprintf("%d more", omitted), "", "", "", "")
			}
			if omitted > 0 && i >= maxRows/2 && i < maxRows/2+omitted {
				continue
			}
			writeRow(table, millisecondsText(a.At), a.Handler, millisecondsText(a.Took), a.failureText(), a.outcomeText(), a.errorText())
		}
		if len(g.attempts) == 0 {
			writeRow(table, "-", strings.Join(g.handlers, ","), "-", "-", notDelivered, "")
		}
		_ = table.Flush()
	}
	return trimLines(text.String())
}

// String returns a table with one row for each failure, or the error of an invalid schedule.
func (s Simulation) String() string {
	if s.Err != nil {
		return "not a valid schedule: " + s.Err.Error() + "\n"
	}
	var text strings.Builder
	table := newTable(&text)
	writeRow(table, "failure", "at", "tier", "waits")
	at := time.Duration(0)
	for _, retry := range s.Retries {
		writeRow(table, fmt.Sprint(retry.Failure), timeText(at), retry.Tier.String(), waitText(retry.Wait))
		at = retry.At
	}
	writeRow(table, fmt.Sprint(len(s.Retries)+1), timeText(at), "dead letter", "")
	_ = table.Flush()
	return trimLines(text.String())
}

func newTable(text *strings.Builder) *tabwriter.Writer {
	return tabwriter.NewWriter(text, 0, 0, 3, ' ', 0)
}

func writeRow(table *tabwriter.Writer, cells ...string) {
	_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
}

// trimLines removes the spaces that tabwriter leaves at the end of lines.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

func (a Attempt) failureText() string {
	if a.Failures == 0 {
		return "-"
	}
	return fmt.Sprint(a.Failures)
}

func (a Attempt) outcomeText() string {
	switch a.Outcome {
	case middleware.Retried, middleware.Snoozed, middleware.Parked:
		return fmt.Sprintf("%s, waits %s on tier %v", a.Outcome, waitText(a.Delay.Round(time.Millisecond)), a.Tier)
	case middleware.DeadLettered:
		return deadLetteredText(a.DeadReason)
	case "":
		return "running"
	}
	return string(a.Outcome)
}

func deadLetteredText(reason middleware.DeadReason) string {
	return fmt.Sprintf("%s as %s", middleware.DeadLettered, reason)
}

// errorText returns the first line of the error.
func (a Attempt) errorText() string {
	if a.Err == nil {
		return ""
	}
	text, _, _ := strings.Cut(strings.ReplaceAll(a.Err.Error(), "\t", " "), "\n")
	if runes := []rune(text); len(runes) > maxErrorText {
		text = string(runes[:maxErrorText]) + "..."
	}
	return text
}

// waitText spells a wait like the tier of that length, because the tier's queue has this name: 125s, not 2m5s. No tier is finer
// than a millisecond: such a wait is spelled like a time.
func waitText(d time.Duration) string {
	if d%time.Millisecond != 0 {
		return timeText(d)
	}
	return backoff.Tier(d).String()
}

// timeText spells a time since the first delivery, or a measured wait. It is like waitText, but a time above one second that is
// not in whole seconds is in seconds: 125.001s, to compare it with 125s.
func timeText(d time.Duration) string {
	switch {
	case d > time.Second && d%time.Second != 0:
		digits := fmt.Sprintf("%d.%09d", d/time.Second, d%time.Second) // a float64 adds noise: 1.4020000000000001
		return strings.TrimRight(digits, "0") + "s"
	case d%time.Millisecond != 0:
		return d.String()
	}
	return backoff.Tier(d).String()
}

func millisecondsText(d time.Duration) string { return timeText(d.Round(time.Millisecond)) }

// listText joins the texts of durations.
func listText(durations []time.Duration, spell func(time.Duration) string) string {
	if len(durations) == 0 {
		return "never"
	}
	words := make([]string, len(durations))
	for i, d := range durations {
		words[i] = spell(d)
	}
	return strings.Join(words, " ")
}
