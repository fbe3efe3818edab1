package retrytest

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
)

const (
	onItsWay = "on its way"

	// mostRows is how many attempts a table shows: of more, the first and the last ones.
	mostRows = 16
)

// Attempt is one delivery of a message to a handler.
type Attempt struct {
	Handler    string                // the handler's name in the router
	At         time.Duration         // since the message was first delivered
	Took       time.Duration         // how long the handler ran, with its middlewares
	Record     middleware.Record     // the failure record the message came with; zero before the first failure
	Outcome    middleware.Outcome    // empty while the handler runs
	Failures   int                   // how often the message had failed then, this failure included; 0 where it did not fail
	Err        error                 // why it failed
	Delay      time.Duration         // how long it was to wait
	Waited     time.Duration         // how long it did wait, from its failure until the next attempt
	Tier       backoff.Tier          // the tier it waited on
	DeadReason middleware.DeadReason // why it was dead-lettered
}

// Story is what became of a message. Its assertions fail the test, and go on, with the whole story in the failure's text; each
// returns the story, so that they can be chained.
type Story struct {
	Topic   string
	Message *message.Message // as it was published

	app      *App
	chapters []chapter
}

// chapter is the story in one consumer group.
type chapter struct {
	handlers   []string
	attempts   []Attempt
	deadLetter *message.Message
}

// Handler is the story as far as this handler is concerned, and those that share its subscriber. It is needed where a topic has
// several handlers that each get every message. A handler that did not get the message fails the test.
func (s *Story) Handler(name string) *Story {
	s.app.t.Helper()
	for _, c := range s.chapters {
		if slices.Contains(c.handlers, name) {
			return &Story{Topic: s.Topic, Message: s.Message, app: s.app, chapters: []chapter{c}}
		}
	}
	s.app.t.Fatalf("retrytest: handler %q did not get message %q\n%v", name, s.Message.UUID, s)
	return nil
}

// only is the chapter that is asked about.
func (s *Story) only() chapter {
	s.app.t.Helper()
	if len(s.chapters) != 1 {
		s.app.t.Fatalf("retrytest: %d handlers got message %q: choose one with Story.Handler\n%v", len(s.chapters), s.Message.UUID, s)
	}
	return s.chapters[0]
}

// Attempts are all deliveries to the handler, first to last.
func (s *Story) Attempts() []Attempt {
	s.app.t.Helper()
	return slices.Clone(s.only().attempts)
}

// DeadLetter is the message as it was dead-lettered; nil where it was not. middleware.ReadRecord reads its record.
func (s *Story) DeadLetter() *message.Message {
	s.app.t.Helper()
	return s.only().deadLetter
}

// RetriedAt asserts when the message came back, counted from its first delivery. The time that handlers took counts. A retry
// may be late by 2 ms for every retry up to it, outside a bubble by half a second. Use NeverRetried for none.
func (s *Story) RetriedAt(times ...time.Duration) *Story {
	s.app.t.Helper()
	if len(times) == 0 {
		s.app.t.Fatalf("retrytest: RetriedAt needs the times of the retries: use NeverRetried to assert that there was none")
	}
	var got []time.Duration
	for i, a := range s.only().attempts {
		if i > 0 && a.Outcome != middleware.Parked {
			got = append(got, a.At)
		}
	}
	s.compare("retried at", got, times, true)
	return s
}

// NeverRetried asserts that no failure of the message was retried and that it was not given back.
func (s *Story) NeverRetried() *Story {
	s.app.t.Helper()
	var got []time.Duration
	attempts := s.only().attempts
	for i, a := range attempts {
		again := a.Outcome == middleware.Retried || a.Outcome == middleware.GivenBack
		switch {
		case again && i+1 < len(attempts):
			got = append(got, attempts[i+1].At)
		case again:
			got = append(got, a.At+a.Delay)
		}
	}
	s.compare("retried at", got, nil, true)
	return s
}

// Waited asserts how long the message waited for each retry, counted from the failure. A wait may be longer by 2 ms, outside a
// bubble by half a second. Use NeverRetried for none.
func (s *Story) Waited(waits ...time.Duration) *Story {
	s.app.t.Helper()
	if len(waits) == 0 {
		s.app.t.Fatalf("retrytest: Waited needs the waits before the retries: use NeverRetried to assert that there was none")
	}
	var got []time.Duration
	for _, a := range s.only().attempts {
		if a.Outcome == middleware.Retried {
			got = append(got, a.Waited)
		}
	}
	s.compare("waited", got, waits, false)
	return s
}

func (s *Story) compare(what string, got, want []time.Duration, summed bool) {
	s.app.t.Helper()
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		late := s.app.lateness
		if summed {
			late *= time.Duration(i + 1)
		}
		same = got[i] >= want[i] && got[i] <= want[i]+late
	}
	if !same {
		s.fail(what, briefly(got), briefly(want))
	}
}

// Processed asserts that the handler returned nil in the end.
func (s *Story) Processed() *Story {
	s.app.t.Helper()
	if got := s.end(); got != string(middleware.Processed) {
		s.fail("the end", got, string(middleware.Processed))
	}
	return s
}

// DeadLettered asserts that the message was dead-lettered in the end, with this reason.
func (s *Story) DeadLettered(reason middleware.DeadReason) *Story {
	s.app.t.Helper()
	if got, want := s.end(), deadAs(reason); got != want {
		s.fail("the end", got, want)
	}
	return s
}

func (s *Story) end() string {
	s.app.t.Helper()
	attempts := s.only().attempts
	if len(attempts) == 0 {
		return onItsWay
	}
	last := attempts[len(attempts)-1]
	if last.Outcome == middleware.DeadLettered {
		return deadAs(last.DeadReason)
	}
	return last.outcome()
}

func deadAs(reason middleware.DeadReason) string {
	return fmt.Sprintf("%s as %s", middleware.DeadLettered, reason)
}

func (s *Story) fail(what, got, want string) {
	s.app.t.Helper()
	s.app.t.Errorf("retrytest: message %q of %q: %s\n got: %s\nwant: %s\n%v", s.Message.UUID, s.Topic, what, got, want, s)
}

// String is the story as a table, one attempt a row.
func (s *Story) String() string {
	var text strings.Builder
	for i, c := range s.chapters {
		if i > 0 {
			text.WriteByte('\n')
		}
		table := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
		row(table, "at", "handler", "took", "failure", "outcome", "why")
		for i, a := range c.attempts {
			if left := len(c.attempts) - mostRows; left > 0 && i >= mostRows/2 && i < mostRows/2+left {
				if i == mostRows/2 {
					row(table, "...", fmt.Sprintf("%d more", left), "", "", "", "")
				}
				continue
			}
			row(table, whole(a.At), a.Handler, whole(a.Took), a.failure(), a.outcome(), a.why())
		}
		if len(c.attempts) == 0 {
			row(table, "-", strings.Join(c.handlers, ","), "-", "-", onItsWay, "")
		}
		_ = table.Flush()
	}
	return trimLines(text.String())
}

func row(table *tabwriter.Writer, cells ...string) {
	_, _ = fmt.Fprintln(table, strings.Join(cells, "\t"))
}

// trimLines takes away what a table has at the end of its lines.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

func (a Attempt) failure() string {
	if a.Failures == 0 {
		return "-"
	}
	return fmt.Sprint(a.Failures)
}

func (a Attempt) outcome() string {
	switch a.Outcome {
	case middleware.Retried, middleware.Parked:
		return fmt.Sprintf("%s, waits %s on tier %v", a.Outcome, brief(a.Delay), a.Tier)
	case middleware.DeadLettered:
		return deadAs(a.DeadReason)
	case "":
		return "running"
	}
	return string(a.Outcome)
}

// why is the error's first line.
func (a Attempt) why() string {
	if a.Err == nil {
		return ""
	}
	const most = 120
	text, _, _ := strings.Cut(strings.ReplaceAll(a.Err.Error(), "\t", " "), "\n")
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "..."
	}
	return text
}

// whole is for tables, where nobody looks for less than a millisecond.
func whole(d time.Duration) string { return brief(d.Round(time.Millisecond)) }

func briefly(all []time.Duration) string {
	if len(all) == 0 {
		return "never"
	}
	words := make([]string, len(all))
	for i, d := range all {
		words[i] = brief(d)
	}
	return strings.Join(words, " ")
}

// brief is a duration without the zeros at its end: 1h, not 1h0m0s.
func brief(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
