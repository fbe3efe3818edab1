// Package operate is what the command wmretry needs of a letters.Store beyond its methods, on the backends that are not
// RabbitMQ.
package operate

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/tieredretry/watermill-retry/letters"
)

// An Operator is a Store as an operator uses it.
type Operator interface {
	Looker
	Files
}

// Files are the letters in files.
type Files interface {
	// Export writes the letters of a topic that the filter selects, one line of JSON each, and removes none. It returns
	// how many it wrote.
	Export(ctx context.Context, topic string, filter letters.Filter, to io.Writer) (int, error)

	// Import publishes letters that Export wrote to their topics. Of the options it uses To, in place of these topics,
	// DryRun and Progress. It ends at the first line that it cannot read or publish, with the number of the line.
	Import(ctx context.Context, from io.Reader, options letters.Redrive) (letters.Summary, error)
}

// A Looker looks at what a backend has of the retries, and changes nothing.
type Looker interface {
	// Keys returns the keys of the groups and topics that have subscribed, or have dead letters, as relaytopic.Key makes
	// them. They are sorted.
	Keys(ctx context.Context) ([]string, error)

	// Waiting returns what waits for each key.
	Waiting(ctx context.Context) ([]Waiting, error)

	// Check looks for what is known to go wrong on the server.
	Check(ctx context.Context) (Checked, error)
}

// OverdueAfter is how late a message may be without a fault.
const OverdueAfter = 5 * time.Second

// Waiting is what waits for the handlers of a group on a topic.
type Waiting struct {
	Name     string `json:"name"`           // the key, or a tier
	Topic    string `json:"topic,omitzero"` // the topic of the dead letters; empty: a tier
	Retries  int    `json:"retries"`        // wait for their delay, or for a free handler
	InFlight int    `json:"in_flight"`      // leased to processes
	Due      int    `json:"-"`              // how many of Retries are due, by the clock of the server
	Overdue  int    `json:"overdue"`        // how many of Retries are due for longer than OverdueAfter
	Dead     int    `json:"dead"`

	NextDue    time.Time `json:"next_due,omitzero"`    // when the first of Retries is due
	OldestDead time.Time `json:"oldest_dead,omitzero"` // when the first dead letter was given up
	Consumers  *int      `json:"consumers,omitempty"`  // processes that wait for messages; nil: not known
	MaybeGone  bool      `json:"-"`                    // the leases of InFlight can be those of processes that are gone
}

// Checked is what a look at a server has found.
type Checked struct {
	Server   string    `json:"server"` // its name and version
	Findings []Finding `json:"findings"`
	Unseen   []string  `json:"unseen"` // what was not looked at
	Waiting  []Waiting `json:"-"`      // what waits for each key; only Operator.Check sets it
}

// Finding is something that is wrong, or that an app can come from.
type Finding struct {
	Rule    string   `json:"rule"`
	Subject string   `json:"subject"` // a queue, a topic, a user, an address
	What    string   `json:"what"`
	Do      []string `json:"do"` // sentences and commands
}

// Found adds a finding.
func (c *Checked) Found(rule, subject, what string, do ...string) {
	c.Findings = append(c.Findings, Finding{rule, subject, what, do})
}

// Clock compares the clock of a server with that of this host. It was read after begun, and the answer can be late.
func (c *Checked) Clock(subject string, begun, server time.Time) {
	var ahead time.Duration
	switch now := time.Now(); {
	case server.After(now):
		ahead = server.Sub(now)
	case server.Before(begun):
		ahead = server.Sub(begun)
	}
	if max(ahead, -ahead) > OverdueAfter {
		c.Found("clock", subject, fmt.Sprintf("its clock is %v from that of this host", ahead.Round(time.Second)),
			"synchronise both. Delays are kept by the server's clock")
	}
}

// A Part makes a Store one that Of returns. The method of a Part is not exported, so that a Store has none for apps.
type Part struct{ operator Operator }

// PartOf returns the Part of a Store.
func PartOf(operator Operator) Part { return Part{operator} }

func (p Part) own() Operator { return p.operator }

// Of returns the Operator of a Store, or nil where it has none.
func Of(store letters.Store) Operator {
	if s, has := store.(interface{ own() Operator }); has {
		return s.own()
	}
	return nil
}
