package retrytest

import "slices"

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
	s := &Story{Topic: of.topic, Message: of.msg, app: a}
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
			if d.Outcome == "" && !d.runs() && p.published == 1 && i < len(p.deliveries)-1 {
				// the message came back before its nack was observed
				attempt.Outcome, attempt.nacked = d.nackedOutcome(), true
			}
			g.attempts = append(g.attempts, attempt)
		}
		s.groups = append(s.groups, g)
	}
	return s
}
