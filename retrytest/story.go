package retrytest

import (
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// Attempt is one delivery of a message to a handler.
type Attempt struct {
	// Event is what observers get, with Record, Outcome, Err, Delay, Tier, Rule and how long the handler ran (Duration).
	// Outcome is empty while the handler runs. Context and Metadata are nil.
	retry.Event
	At     time.Duration // the time of the delivery, since the first delivery of the message
	Waited time.Duration // how long the message waited, from this failure to the next attempt that is not parked

	came     retry.Record // the failure record that the message came with; zero before the first failure
	nacked   bool         // whether its handler or the router has nacked it
	uncalled bool         // the middleware has not called the handler

	simulated bool          // whether Simulate has made it
	later     time.Duration // how much later it can be than At, where it is simulated with jitter
}

// again reports whether the handler is called again because it failed.
func (a *Attempt) again() bool {
	return a.Outcome.Waits() && a.Outcome != retry.Parked
}

// comesBack reports whether another attempt follows.
func (a *Attempt) comesBack() bool {
	return a.Outcome.Waits() || a.nacked
}

// Story has the attempts of a message and their outcomes. A failed assertion prints the whole story and marks the test
// as failed, and the test goes on. Each assertion returns the story, so that assertions can be chained.
type Story struct {
	Message *message.Message // as it was published

	topic  string
	app    *App
	groups []groupStory
}

// groupStory has the attempts of a message in one consumer group.
type groupStory struct {
	handlers   []string
	attempts   []Attempt
	deadLetter *message.Message
}

// Handler returns the part of the story that belongs to one handler, and to the handlers that share its messages. It is
// needed if several handlers of the topic each get every message. It ends the test if the handler did not get the
// message.
func (s *Story) Handler(name string) *Story {
	s.app.t.Helper()
	for _, g := range s.groups {
		if slices.Contains(g.handlers, name) {
			return &Story{topic: s.topic, Message: s.Message, app: s.app, groups: []groupStory{g}}
		}
	}
	s.app.t.Fatalf("retrytest: handler %q did not get message %q\n%v", name, s.Message.UUID, s)
	return nil
}

// only returns the story of the only consumer group. It ends the test if there are several.
func (s *Story) only() groupStory {
	s.app.t.Helper()
	if len(s.groups) != 1 {
		s.app.t.Fatalf("retrytest: %d handlers got message %q: choose one with Story.Handler\n%v", len(s.groups),
			s.Message.UUID, s)
	}
	return s.groups[0]
}

// Attempts returns all deliveries of the message to the handler, first to last.
func (s *Story) Attempts() []Attempt {
	s.app.t.Helper()
	return slices.Clone(s.only().attempts)
}

// DeadLetter returns the message as it was dead-lettered, or nil if it was not. retry.ReadRecord reads its failure
// record.
func (s *Story) DeadLetter() *message.Message {
	s.app.t.Helper()
	return s.only().deadLetter
}

// RetriedAt asserts the times of all retries, since the first delivery. They include the time that the handlers took. A
// snoozed message is retried, too. With Jitter they are the earliest times. Each retry may be late by 2 ms for every
// retry up to it, and for every round of Config.TiersWait; outside of a bubble by 500 ms. At least one time is
// required: use NeverRetried to assert that there was no retry.
func (s *Story) RetriedAt(times ...time.Duration) *Story {
	s.app.t.Helper()
	if len(times) == 0 {
		s.app.t.Fatalf("retrytest: RetriedAt needs the times of the retries: use NeverRetried to assert that there " +
			"was none")
	}
	var got, late []time.Duration
	var spread time.Duration // the sum for all delays before
	for i, a := range s.only().attempts {
		if i > 0 && !a.uncalled {
			got, late = append(got, a.At), append(late, spread+s.app.lateness*time.Duration(i))
		}
		spread += a.Spread
	}
	if !inTime(got, times, late) {
		s.fail("retried at", listText(got, timeText), listText(times, timeText))
	}
	return s
}

// NeverRetried asserts that no failure of the message was retried or snoozed, and that the message was not nacked.
func (s *Story) NeverRetried() *Story {
	s.app.t.Helper()
	var got []time.Duration
	attempts := s.only().attempts
	for i, a := range attempts {
		again := a.again() || a.nacked
		switch {
		case again && i+1 < len(attempts):
			got = append(got, attempts[i+1].At)
		case again:
			got = append(got, a.At+a.Delay)
		}
	}
	if len(got) > 0 {
		s.fail("retried at", listText(got, timeText), listText(nil, timeText))
	}
	return s
}

// Waited asserts how long the message waited for each retry, since the failure. With Jitter it is the shortest wait.
// Each wait may be longer by 2 ms, and by 2 ms for every round of Config.TiersWait; outside of a bubble by 500 ms. At
// least one wait is required: use NeverRetried to assert that there was no retry.
func (s *Story) Waited(waits ...time.Duration) *Story {
	s.app.t.Helper()
	if len(waits) == 0 {
		s.app.t.Fatalf("retrytest: Waited needs the waits before the retries: use NeverRetried to assert that there " +
			"was none")
	}
	var got, late []time.Duration
	attempts := s.only().attempts
	for i, a := range attempts {
		if a.again() {
			got = append(got, a.Waited)
			late = append(late, a.Spread+s.app.lateness*time.Duration(roundsOf(attempts[i+1:])))
		}
	}
	if !inTime(got, waits, late) {
		s.fail("waited", listText(got, timeText), listText(waits, waitText))
	}
	return s
}

// roundsOf is how many tiers a message has waited on until its wait was over: each of them may be late.
func roundsOf(later []Attempt) int {
	for i, a := range later {
		if a.Outcome != retry.Parked {
			return i + 1
		}
	}
	return len(later) + 1
}

// inTime reports whether each duration is as wanted, or longer by at most its lateness.
func inTime(got, want, lateness []time.Duration) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i] < want[i] || got[i] > want[i]+lateness[i] {
			return false
		}
	}
	return true
}

// Processed asserts that the handler returned nil for the last attempt: its outcome is processed or recovered.
func (s *Story) Processed() *Story {
	s.app.t.Helper()
	if got := s.lastOutcome(); got != string(retry.Recovered) {
		s.compareLastOutcome(string(retry.Processed))
	}
	return s
}

// DeadLettered asserts that the message was dead-lettered after the last attempt, with this reason.
func (s *Story) DeadLettered(reason retry.DeadReason) *Story {
	s.app.t.Helper()
	s.compareLastOutcome(givenUpText(retry.DeadLettered, reason))
	return s
}

// Blocked asserts that the message was given up after the last attempt, with this reason, and keeps those of its key
// waiting: its handler has Order.Block. The messages behind it are handled all the same.
func (s *Story) Blocked(reason retry.DeadReason) *Story {
	s.app.t.Helper()
	s.compareLastOutcome(givenUpText(retry.Blocked, reason))
	return s
}

// Discarded asserts that a rule has discarded the message after the last attempt.
func (s *Story) Discarded() *Story {
	s.app.t.Helper()
	s.compareLastOutcome(string(retry.Discarded))
	return s
}

func (s *Story) lastOutcome() string {
	s.app.t.Helper()
	if attempts := s.only().attempts; len(attempts) > 0 {
		return attempts[len(attempts)-1].outcomeText()
	}
	return notDelivered
}

func (s *Story) compareLastOutcome(want string) {
	s.app.t.Helper()
	if got := s.lastOutcome(); got != want {
		s.fail("last outcome", got, want)
	}
}

func (s *Story) fail(what, got, want string) {
	s.app.t.Helper()
	s.app.t.Errorf("retrytest: message %q of %q: %s\n got: %s\nwant: %s\n%v", s.Message.UUID, s.topic, what, got, want,
		s)
}

// stories returns the stories of all messages of a topic that had a handler, oldest first.
func (l *ledger) stories(a *App, topic string) (all []*Story) {
	l.mu.Lock()
	entries := slices.Clone(l.entries)
	l.mu.Unlock()
	for _, e := range entries {
		if e.topic == topic {
			all = append(all, l.story(a, e))
		}
	}
	return all
}

// story returns the story of a message as far as it is known now.
func (l *ledger) story(a *App, of *entry) *Story {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Story{topic: of.topic, Message: of.msg, app: a}
	for _, p := range of.groups {
		g := groupStory{deadLetter: p.deadLetter}
		for name, q := range l.handlers {
			if q == p.queue {
				g.handlers = append(g.handlers, name)
			}
		}
		slices.Sort(g.handlers)
		for i, d := range p.deliveries {
			attempt := d.Attempt
			attempt.Waited = d.waited(p.deliveries[i+1:])
			g.attempts = append(g.attempts, attempt)
		}
		s.groups = append(s.groups, g)
	}
	return s
}
