package letters

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

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
