// Package command has the commands of wmretry order and wmretry key, and what the processes with handlers that have
// Order.Partitions or Breaker.Key answer.
package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/retry"
)

// What a request can ask for.
const (
	Status = "status" // what the process does
	Skip   = "skip"   // and make the blocked messages of the key dead letters
	Retry  = "retry"  // and handle the blocked messages of the key again
	Keys   = "keys"   // the keys of handlers with Breaker.Key
	Limit  = "limit"  // and limit the key of these handlers
	Tell   = "tell"   // what the process knows of limits: so processes ask each other
)

const (
	// ReplyQueue is where answers go: the broker gives the replies to it to the channel that has asked.
	ReplyQueue = "amq.rabbitmq.reply-to"

	// LongestLimit is the longest time for which a key can be limited.
	LongestLimit = 30 * 24 * time.Hour
	// NoLimit are the calls of a request that ends a limit.
	NoLimit = -1

	maxAhead   = 24 * time.Hour // how far the clock of a command may be ahead of that of a process
	maxRequest = 1 << 22        // bytes: a process tells up to some thousand decisions
	maxQueue   = 255            // bytes of the name of a queue
	maxBlocked = 1000           // messages in an answer
	maxReason  = 200            // bytes of the reason of each
)

// A Request is a command for all processes. Its messages are JSON.
type Request struct {
	Queue string `json:"queue"` // the work queue; of Keys and Limit, empty: all
	Do    string `json:"do"`
	Key   string `json:"key,omitempty"` // empty: the messages without a key
	// Calls is how many calls of the key a process has at the same time, of Limit. 0: it is paused.
	Calls int `json:"calls,omitempty"`
	// Lasts is for how long, from when a process gets the request: the clocks of machines differ. Of NoLimit, it is for
	// how long a process tells others.
	Lasts time.Duration `json:"lasts,omitempty"`
	// At is when the operator has decided, in ns. It is compared with that of other decisions about the key, and with
	// no clock.
	At   int64     `json:"at,omitempty"`
	Told []Request `json:"told,omitempty"` // what the process that asks knows of limits, of Tell
}

// An Answer is that of one process.
type Answer struct {
	Host     string    `json:"host"`
	PID      int       `json:"pid"`
	Handlers []Handler `json:"handlers,omitempty"` // the handlers of the work queue
	Keyed    int       `json:"keyed,omitempty"`    // handlers with Breaker.Key, of Keys and Limit
	Keys     []Key     `json:"keys,omitempty"`     // their keys
	Told     []Request `json:"told,omitempty"`     // what the process knows of limits, of Tell
	Decided  int       `json:"decided"`            // blocked messages, or handlers with the key, that are changed
	Seen     int       `json:"seen,omitempty"`     // handlers that have got a message of the key, of Limit
	Unlisted int       `json:"unlisted"`           // blocked messages that are not in Handlers, because there are too many
	Error    string    `json:"error,omitempty"`
}

// Process names the process.
func (a Answer) Process() string { return fmt.Sprintf("%s/%d", a.Host, a.PID) }

// A Handler is one with Order.Partitions.
type Handler struct {
	Name       string      `json:"name"`
	Partitions []Partition `json:"partitions"` // the work queue first, whose messages are moved to the others
}

// A Key is one of a handler with Breaker.Key, in one process.
type Key struct {
	gate.KeyState
	Queue   string `json:"queue"`
	Handler string `json:"handler"`
	Process string `json:"-"` // the process of the answer
}

// KeysOf returns the keys that answers have, as gate.KeyState orders them.
func KeysOf(answers []Answer) (all []Key) {
	for _, a := range answers {
		for _, key := range a.Keys {
			key.Process = a.Process()
			all = append(all, key)
		}
	}
	slices.SortStableFunc(all, func(a, b Key) int { return a.Compare(b.KeyState) })
	return all
}

// A Partition is what a process does with a queue of a handler.
type Partition struct {
	Queue     string        `json:"queue"`
	Delivered uint64        `json:"delivered"` // messages since it began to consume; 0: perhaps another process gets them
	Waiting   int           `json:"waiting"`   // messages that wait for their retry, or are blocked
	Behind    int           `json:"behind"`    // messages of their keys. Both have room for Prefetch
	Oldest    time.Duration `json:"oldest"`    // since when the oldest message is here, in ns; 0: none is
	Blocked   []Blocked     `json:"blocked"`
}

// Owned is a partition of an answer.
type Owned struct {
	Partition
	Owner string // the handler and the process
}

// PartitionsOf returns the partitions that answers have.
func PartitionsOf(answers []Answer) (all []Owned) {
	for _, a := range answers {
		for _, h := range a.Handlers {
			for _, p := range h.Partitions {
				all = append(all, Owned{p, h.Name + " " + a.Process()})
			}
		}
	}
	return all
}

// Blocked is a message that keeps those of its key waiting, because the handler has Order.Block.
type Blocked struct {
	Key         string           `json:"key"`
	MessageUUID string           `json:"message_uuid"`
	Since       time.Time        `json:"since"` // since when this process has it blocked
	DeadReason  retry.DeadReason `json:"dead_reason"`
	Reason      string           `json:"reason"` // the text of its last error
}

// Asked is what the processes have answered.
type Asked struct {
	Prefix    string // the prefix of the broker's exchanges
	Processes int    // how many processes were asked; 0: not known
	Answers   []Answer
}

// Faults returns what is missing in the answers. advice is about processes that have not answered.
func (a Asked) Faults(advice string) (all []string) {
	for _, answer := range a.Answers {
		if answer.Error != "" {
			all = append(all, answer.Process()+": "+answer.Error)
		}
	}
	if missing := a.Processes - len(a.Answers); missing > 0 {
		all = append(all, lettertext.Plural(missing, "process has", "processes have")+" not answered"+advice)
	}
	return all
}

// An Asker sends a request to the processes of a broker, and waits for their answers. A Store embeds it, for AskerOf:
// the method is not exported, so that a Store has no method for apps.
type Asker func(ctx context.Context, r Request, wait time.Duration) (Asked, error)

func (a Asker) own() Asker { return a }

// AskerOf returns the Asker of a Store, or nil where it has none.
func AskerOf(store any) Asker {
	if s, has := store.(interface{ own() Asker }); has {
		return s.own()
	}
	return nil
}

// Line returns the command that sends a request, for a shell.
func (r Request) Line(prefix string) string {
	line := "wmretry order " + r.Do
	if prefix != string(naming.Default) {
		line += " --prefix " + shell.Word(prefix)
	}
	if strings.HasPrefix(r.Queue, "-") || strings.HasPrefix(r.Key, "-") {
		line += " --"
	}
	line += " " + shell.Word(r.Queue)
	if r.Do == Status {
		return line
	}
	return line + " " + shell.Word(r.Key)
}

// OfKeys reports whether the request is for handlers with Breaker.Key, and not for those with Order.Partitions.
func (r Request) OfKeys() bool { return r.Do == Keys || r.Do == Limit }

// Parse reads a request.
func Parse(body []byte) (r Request, err error) {
	if len(body) > maxRequest {
		return r, fmt.Errorf("the request has %d bytes: at most %d", len(body), maxRequest)
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&r); err != nil {
		return r, fmt.Errorf("the request is not JSON: %w", err)
	}
	return r, r.Check()
}

// Check returns why a request cannot be carried out.
func (r Request) Check() error {
	now := time.Now()
	switch {
	case !slices.Contains([]string{Status, Skip, Retry, Keys, Limit, Tell}, r.Do):
		return fmt.Errorf("the request has do %q: it must be %s, %s, %s, %s, %s or %s", r.Do[:min(len(r.Do), 20)],
			Status, Skip, Retry, Keys, Limit, Tell)
	case r.Queue == "" && !r.OfKeys() && r.Do != Tell:
		return errors.New("the request names no queue")
	case len(r.Queue) > maxQueue:
		return fmt.Errorf("the request names a queue of %d bytes: at most %d", len(r.Queue), maxQueue)
	case r.Do != Limit:
		return nil
	case r.Key == "" || r.Calls < NoLimit || r.Lasts <= 0 || r.Lasts > LongestLimit:
		return fmt.Errorf("the request limits key %q to %d calls for %v: it must name a key, 0 calls or more, and a "+
			"time of at most %v", r.Key, r.Calls, r.Lasts, LongestLimit)
	case r.At <= 0 || r.At > now.Add(maxAhead).UnixNano():
		return fmt.Errorf("the request is of %v, by the clock where wmretry runs, and the process has %v: set the clock",
			time.Unix(0, r.At).UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// Replies reports whether replies to an address go to a channel that has asked, and to no queue.
func Replies(to string) bool { return strings.HasPrefix(to, ReplyQueue) }

// Marshal writes an answer, with not more than it can have.
func (a Answer) Marshal() []byte {
	room := maxBlocked
	for _, h := range a.Handlers {
		for i, p := range h.Partitions {
			listed := slices.Clone(p.Blocked[:min(len(p.Blocked), room)])
			room -= len(listed)
			a.Unlisted += len(p.Blocked) - len(listed)
			for at, b := range listed {
				listed[at].Reason = lettertext.Short(maxReason, b.Reason)
			}
			h.Partitions[i].Blocked = listed
		}
	}
	body, _ := json.Marshal(a) // all of its types can be written
	return body
}

// ErrNoProcess is returned when no process has got a request.
var ErrNoProcess = errors.New("no process with a handler that has Order.Partitions or Breaker.Key is connected")
