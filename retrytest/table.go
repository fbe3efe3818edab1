package retrytest

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// maxRows is how many attempts a table shows. It shows the first and the last of more.
	maxRows = 16
	// maxSimulatedRows is how many of a simulated story: whole schedules.
	maxSimulatedRows = 64
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
		c := columns{handler: true, rule: slices.ContainsFunc(g.attempts, func(a Attempt) bool { return a.Rule != "" })}
		c.writeHead(table)
		c.writeAttempts(table, g.attempts, maxRows)
		if len(g.attempts) == 0 {
			writeRow(table, "-", strings.Join(g.handlers, ","), "-", "-", notDelivered, "")
		}
		_ = table.Flush()
	}
	return trimLines(text.String())
}

// String returns the story as a table with one row for each attempt, or the faults of the configuration.
func (s SimulatedStory) String() string {
	if s.Err != nil {
		return "not a valid configuration: " + s.Err.Error() + "\n"
	}
	var text strings.Builder
	table := newTable(&text)
	c := columns{rule: slices.ContainsFunc(s.Attempts, func(a Attempt) bool { return a.Rule != "" })}
	c.writeHead(table)
	c.writeAttempts(table, s.Attempts, maxSimulatedRows)
	if last := len(s.Attempts) - 1; last >= 0 && s.Attempts[last].comesBack() {
		c.write(table, "...", "", "", "", "and so on", "", "")
	}
	_ = table.Flush()
	return trimLines(text.String())
}

// columns are those of a table of attempts.
type columns struct{ handler, rule bool }

func (c columns) writeHead(table *tabwriter.Writer) {
	c.write(table, "at", "handler", "took", "failure", "outcome", "rule", "why")
}

func (c columns) write(table *tabwriter.Writer, at, handler, took, failure, outcome, rule, why string) {
	cells := []string{at}
	if c.handler {
		cells = append(cells, handler)
	}
	cells = append(cells, took, failure, outcome)
	if c.rule {
		cells = append(cells, rule)
	}
	writeRow(table, append(cells, why)...)
}

// writeAttempts writes at most so many attempts: the first and the last ones. Of more than three rounds on one tier it
// writes the first and the last.
func (c columns) writeAttempts(table *tabwriter.Writer, attempts []Attempt, limit int) {
	shown := withoutRounds(attempts)
	omitted := 0
	if len(shown) > limit {
		middle := shown[limit/2 : len(shown)-limit/2]
		for _, s := range middle {
			omitted += 1 + s.omitted
		}
		shown = slices.Concat(shown[:limit/2], shown[len(shown)-limit/2:])
	}
	for i, s := range shown {
		if omitted > 0 && i == limit/2 {
			c.write(table, "...", fmt.Sprintf("%d more", omitted), "", "", c.more(omitted), "", "")
		}
		if s.omitted > 0 {
			c.write(table, "...", fmt.Sprintf("%d more", s.omitted), "", "", c.more(s.omitted), "", "")
		}
		a := s.Attempt
		c.write(table, rangeText(a.At, a.At+a.later, millisecondsText), a.Handler, millisecondsText(a.Duration),
			a.failureText(), a.outcomeText(), a.Rule, a.errorText())
	}
}

// more is in the column of outcomes where there is none for handlers.
func (c columns) more(n int) string {
	if c.handler {
		return ""
	}
	return fmt.Sprintf("%d more", n)
}

// shownAttempt is an attempt that a table shows, after so many rounds that it does not show.
type shownAttempt struct {
	Attempt
	omitted int
}

// withoutRounds omits what is between the first and the last of more than three rounds on one tier.
func withoutRounds(attempts []Attempt) (shown []shownAttempt) {
	for len(attempts) > 0 {
		rounds := 1
		for rounds < len(attempts) && attempts[0].Outcome == retry.Parked &&
			attempts[rounds].Outcome == retry.Parked && attempts[rounds].Tier == attempts[0].Tier {
			rounds++
		}
		shown = append(shown, shownAttempt{attempts[0], 0})
		switch {
		case rounds > 3:
			shown = append(shown, shownAttempt{attempts[rounds-1], rounds - 2})
		default:
			for _, a := range attempts[1:rounds] {
				shown = append(shown, shownAttempt{a, 0})
			}
		}
		attempts = attempts[rounds:]
	}
	return shown
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
	if a.Record.Failures <= a.came.Failures { // it did not fail, or was snoozed
		return "-"
	}
	return fmt.Sprint(a.Record.Failures)
}

func (a Attempt) outcomeText() string {
	switch {
	case a.Outcome.Waits():
		return fmt.Sprintf("%s, waits %s on tier %v", a.Outcome, a.delayText(), a.Tier)
	case a.Outcome.GivenUp():
		return givenUpText(a.Outcome, a.Record.DeadReason)
	case a.Outcome == "":
		return "running"
	}
	return string(a.Outcome)
}

// delayText is a range in a simulated story with jitter.
func (a Attempt) delayText() string {
	delay, longer := a.Delay.Round(time.Millisecond), time.Duration(0)
	if a.simulated {
		longer = a.Spread
	}
	return rangeText(delay, delay+longer, waitText)
}

func givenUpText(outcome retry.Outcome, reason retry.DeadReason) string {
	return fmt.Sprintf("%s as %s", outcome, reason)
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

// waitText spells a wait like the tier of that length, because the tier's queue has this name: 125s, not 2m5s. No tier
// is finer than a millisecond: such a wait is spelled like a time.
func waitText(d time.Duration) string {
	if d%time.Millisecond != 0 {
		return timeText(d)
	}
	return backoff.Tier(d).String()
}

// timeText spells a time since the first delivery, or a measured wait. It is like waitText, but a time above one second
// that is not in whole seconds is in seconds: 125.001s, to compare it with 125s.
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

// rangeText spells a duration that is only known to be between two.
func rangeText(from, to time.Duration, spell func(time.Duration) string) string {
	if first, last := spell(from), spell(to); first != last {
		return first + " to " + last
	}
	return spell(from)
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
