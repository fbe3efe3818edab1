package letters

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// Redrive is the options of a redrive. The zero value sends all letters that were there when it began, as fast as the
// broker takes them.
type Redrive struct {
	// Filter selects the letters.
	Filter Filter
	// Limit is how many letters are sent at most. The default is no limit.
	Limit int
	// Rate is how many letters are sent in a second at most. The default is no limit.
	Rate float64
	// Canary is how many letters are sent first. Then Redrive watches them, and goes on only if none of them dies
	// again. Letters that are not sent do not count. The default is no canary.
	//
	// A letter that no handler gets cannot die. So Redrive sends none to a target where the backend shows no consumer for
	// ten seconds, and stops where it shows none for a minute meanwhile. That time is watched in addition. Where a backend
	// shows no consumers, those are missing while nothing takes what is due. Where it does not show that either, Redrive
	// goes on, with Summary.CanaryUnknown.
	Canary int
	// CanaryWait is how long they are watched. The default is as long as they took to die the last time, from their
	// first failure to their last, plus 5% and 10 seconds: at most an hour. Redis shows a process that has died as a
	// consumer for the rest of its Lease, 15 seconds by default: a shorter wait can end before that.
	CanaryWait time.Duration
	// MaxRedead is the share of the letters sent, between 0 and 1, that may die again before Redrive stops. It is
	// looked at when 20 have been sent. The default is no look.
	MaxRedead float64
	// DryRun looks at all letters and sends none.
	DryRun bool
	// To is the work queue or topic that all letters are sent to, in place of their Target.
	To string
	// By is who redrives, for the history of each letter. The default is user@host of this process.
	By string
	// Note is for the history of each letter.
	Note string
	// Again makes an Inbox of package inbox call the handler once more, where the message was handled with success
	// before. The default is that it is a duplicate. A handler without an Inbox is called in both cases.
	Again bool
	// Progress is called after every change, at most ten times a second, and once at the end. It is never called by
	// two goroutines at the same time. It must not block.
	Progress func(Progress)
}

// Validate reports all faults of the options.
func (r Redrive) Validate() error {
	return errors.Join(
		faults.If(r.Limit < 0, "Redrive.Limit is %d: it must not be negative (0 is no limit)", r.Limit),
		faults.If(r.Rate < 0 || math.IsNaN(r.Rate) || math.IsInf(r.Rate, 0),
			"Redrive.Rate is %v: it must be a number of letters a second, not negative (0 is no limit)", r.Rate),
		faults.If(r.Canary < 0, "Redrive.Canary is %d: it must not be negative (0 is none)", r.Canary),
		faults.If(r.CanaryWait < 0, "Redrive.CanaryWait is %v: it must not be negative", r.CanaryWait),
		faults.If(r.CanaryWait > 0 && r.Canary == 0,
			"Redrive.CanaryWait is %v: it needs Redrive.Canary, the number of letters to watch", r.CanaryWait),
		faults.If(r.MaxRedead < 0 || r.MaxRedead > 1 || math.IsNaN(r.MaxRedead),
			"Redrive.MaxRedead is %v: it must be a share between 0 and 1", r.MaxRedead),
		r.Filter.Validate(),
	)
}

// Discard is the options of a discard. The zero value removes all letters that were there when it began.
type Discard struct {
	// Filter selects the letters.
	Filter Filter
	// Limit is how many letters are removed at most. The default is no limit.
	Limit int
	// DryRun looks at all letters and removes none.
	DryRun bool
	// Export gets each letter as a line of JSON before it is removed, as deadletter.Store.Export writes it. If it has
	// a method Sync() error, as *os.File has, that is called before letters are removed. An error ends the discard.
	// After a lost connection, letters can be there twice. The default is none.
	Export io.Writer
	// Progress is as in Redrive.
	Progress func(Progress)
}

// Validate reports all faults of the options.
func (d Discard) Validate() error {
	return errors.Join(
		faults.If(d.Limit < 0, "Discard.Limit is %d: it must not be negative (0 is no limit)", d.Limit),
		d.Filter.Validate(),
	)
}

// Phase is what a redrive or discard is doing.
type Phase string

// The phases, in their order.
const (
	Looking  Phase = "looking"  // goes through the letters
	Canary   Phase = "canary"   // sends the canary
	Watching Phase = "watching" // waits whether the canary dies again
	Waiting  Phase = "waiting"  // the broker is away or blocks publishers: goes on when it is back
	Ended    Phase = "ended"
)

// Progress is how far a redrive or discard is.
type Progress struct {
	Summary
	Phase   Phase         `json:"phase"`
	Elapsed time.Duration `json:"elapsed"`
	// Until is when the canary is watched until. Zero in other phases.
	Until time.Time `json:"until,omitzero"`
	// Err is why the phase is Waiting.
	Err error `json:"-"`
}

// Summary is what became of the letters that were in the queue at the start: Total is the sum of Done, Other, Kept
// and Unseen.
type Summary struct {
	Total  int `json:"total"`  // in the queue at the start
	Done   int `json:"done"`   // sent or discarded, and removed; with DryRun those that would be
	Other  int `json:"other"`  // not selected by the filter: they stay
	Kept   int `json:"kept"`   // selected and not sent: they stay
	Unseen int `json:"unseen"` // not looked at, because of Limit or because the call ended early: they stay

	Redead int `json:"redead"` // how many of Done died again until the end of the call, as far as it looked
	// Doubtful is how many sends had no confirm. Those letters stay and may be sent again, so each may be a
	// duplicate.
	Doubtful int `json:"doubtful"`
	// CanaryUnknown reports that the backend did not show whether a process consumes the letters of the canary: none
	// has died again, but it is not known whether they were handled.
	CanaryUnknown bool `json:"canary_unknown,omitzero"`
}

// String returns the summary as one line.
func (s Summary) String() string {
	line := fmt.Sprintf("total=%d done=%d other=%d kept=%d unseen=%d redead=%d doubtful=%d", s.Total, s.Done, s.Other,
		s.Kept, s.Unseen, s.Redead, s.Doubtful)
	if s.CanaryUnknown {
		line += " canary_unknown=true"
	}
	return line
}

// Left estimates how long the rest takes, at the rate so far. It is 0 where nothing is known.
func (p Progress) Left() time.Duration {
	seen := p.Done + p.Other + p.Kept
	if seen == 0 || p.Phase == Ended {
		return 0
	}
	return time.Duration(float64(p.Elapsed) / float64(seen) * float64(p.Total-seen)).Round(time.Second)
}

// PerSecond is the number of letters done in a second so far.
func (p Progress) PerSecond() float64 { return float64(p.Done) / cmp.Or(p.Elapsed, 1).Seconds() }

// RedrivenKey is the metadata key of the history of a message that was redriven: a Redriven as JSON. It is no part of
// the failure record: the message has it while it is handled again, and its next dead letter has it too. Handlers do
// not pass it on.
const RedrivenKey = recordkey.Redriven

const (
	maxTimes        = 1 << 30 // more than any message is redriven
	maxRedrives     = 8       // how many redrives a history keeps
	maxRedriven     = 1024    // bytes of its JSON
	maxRedriveField = 128     // bytes of each text in it
)

// Redriven is how often, when and by whom a message was redriven.
type Redriven struct {
	Times    int           `json:"times"`    // how often
	Redrives []PastRedrive `json:"redrives"` // the last 8, the newest at the end; at most 1 KiB as JSON

	// Again identifies the letter of the last redrive that had Redrive.Again, also where Redrives does not have it any
	// more: how often it was redriven with that redrive, "@", and its FailedAt. An Inbox of package inbox takes the
	// message for another one than before that redrive. A letter that is redriven twice, because the first redrive was
	// killed before it removed the letter, has the same Again both times. ReadRedriven cuts it to 128 bytes.
	Again string `json:"again,omitzero"`
}

// PastRedrive is one redrive of a message, and what its dead letter was like before.
type PastRedrive struct {
	Run        string           `json:"run,omitzero"`         // an id of the command or call that redrove it
	At         time.Time        `json:"at,omitzero"`          // in UTC
	By         string           `json:"by,omitzero"`          // who, such as user@host; at most 128 bytes
	Note       string           `json:"note,omitzero"`        // at most 128 bytes
	Again      bool             `json:"again,omitzero"`       // it had Redrive.Again
	FailedAt   time.Time        `json:"failed_at,omitzero"`   // when it failed first, of the record before; in UTC
	Failures   int              `json:"failures,omitzero"`    // the number that the record had before
	DeadReason retry.DeadReason `json:"dead_reason,omitzero"` // the reason that the record had before
	Reason     string           `json:"reason,omitzero"`      // the text that the record had before; at most 128 bytes
}

// ReadRedriven reads the history of a message. It returns false where the message was never redriven, or the history is
// garbled.
func ReadRedriven(metadata message.Metadata) (Redriven, bool) {
	text, found := metadata[RedrivenKey]
	if !found || len(text) > maxRedriven {
		return Redriven{}, false
	}
	var history Redriven
	if err := json.Unmarshal([]byte(text), &history); err != nil || history.Times <= 0 || history.Times > maxTimes {
		return Redriven{}, false
	}
	history.Again = shorten(history.Again) // what Add has made is shorter; String cannot leave it out
	return history, true
}

// Add returns the history with one redrive more.
func (r Redriven) Add(redrive PastRedrive) Redriven {
	redrive.At = redrive.At.UTC().Truncate(time.Millisecond)
	redrive.FailedAt = redrive.FailedAt.UTC().Truncate(time.Millisecond)
	for _, text := range []*string{&redrive.Run, &redrive.By, &redrive.Note, &redrive.Reason,
		(*string)(&redrive.DeadReason)} {
		*text = shorten(*text)
	}
	kept := r.Redrives[max(0, len(r.Redrives)-maxRedrives+1):]
	if redrive.Again {
		r.Again = fmt.Sprintf("%d@%s", r.Times+1, redrive.FailedAt.Format(time.RFC3339Nano))
	}
	return Redriven{Times: r.Times + 1, Redrives: append(kept[:len(kept):len(kept)], redrive), Again: r.Again}
}

func shorten(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxRedriveField)], "")
}

// Write writes the history into metadata. The oldest redrives that do not fit into 1 KiB are left out.
func (r Redriven) Write(metadata message.Metadata) { metadata[RedrivenKey] = r.String() }

// String returns the history as JSON, as Write writes it.
func (r Redriven) String() string {
	for {
		text, err := json.Marshal(r)
		if err == nil && len(text) <= maxRedriven || len(r.Redrives) == 0 {
			return string(text)
		}
		r.Redrives = r.Redrives[1:]
	}
}
