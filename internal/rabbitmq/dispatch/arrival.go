package dispatch

import (
	"context"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// A Source is what arrivals have come from.
type Source interface {
	// Gone ends when no arrival is to be handed out any more.
	Gone() context.Context

	// GiveBack is called in the dispatcher's goroutine for an arrival that is not handed out, because its source is gone.
	GiveBack(a *Arrival)

	// Settle is called once, in a goroutine of the arrival, when its message was acked, or when it was nacked or could not
	// be unmarshalled and its pause is over. It is not called for what is given up.
	Settle(a *Arrival, acked bool)
}

// An Arrival is a delivery that was received and is not settled.
type Arrival struct {
	Source   Source
	Delivery amqp091.Delivery
	Msg      *message.Message
	Err      error            // the error of Handler.Unmarshal
	Key      string           // empty: there is none
	Of       *msgctx.Delivery // the context of the message; nil: it has another one
	Mark     any              // what the source has marked it with

	lost   context.Context         // ends when nothing can settle it
	place  *gate.Place             // taken before the message is handed out
	waits  bool                    // has no place yet
	end    context.CancelCauseFunc // ends the context of the message; nil: there is no message
	behind *Arrival                // in a line
}

// arrivals has those that are used again: each message would allocate one.
var arrivals = sync.Pool{New: func() any { return new(Arrival) }}

// Free is called when an arrival is not used any more.
func (a *Arrival) Free() {
	*a = Arrival{}
	arrivals.Put(a)
}

// A line is a queue of arrivals.
type line struct {
	first, last *Arrival
	length      int
}

func (l *line) add(a *Arrival) {
	if l.first == nil {
		l.first = a
	} else {
		l.last.behind = a
	}
	l.last = a
	l.length++
}

// next takes the first one out of the line. Nil: the line is empty.
func (l *line) next() *Arrival {
	a := l.first
	if a != nil {
		l.first, a.behind = a.behind, nil
		l.length--
	}
	return a
}

// remove takes the arrivals of a source out of the line. Nil: of all.
func (l *line) remove(of Source) (removed []*Arrival) {
	all := *l
	*l = line{}
	for a := all.next(); a != nil; a = all.next() {
		if of == nil || a.Source == of {
			removed = append(removed, a)
		} else {
			l.add(a)
		}
	}
	return removed
}

// Keys has the arrivals that wait for an earlier one with their key to be settled. Only the dispatcher's goroutine uses
// it. A key is in it while an arrival with it is not settled.
type Keys map[string]taken

// taken is what is known of a key.
type taken struct {
	by     *Arrival // the first one
	behind line
}

// Add reports whether an arrival need not wait: it is the first one with its key, or has none.
func (k Keys) Add(a *Arrival) (first bool) {
	if a.Key == "" {
		return true
	}
	t, busy := k[a.Key]
	if busy {
		t.behind.add(a)
	} else {
		t.by = a
	}
	k[a.Key] = t
	return !busy
}

// Release ends an arrival, and returns the one that is the first one with its key now. Nil: the arrival was not the
// first one, or none waits.
func (k Keys) Release(a *Arrival) *Arrival {
	t := k[a.Key]
	if t.by != a {
		return nil
	}
	if t.by = t.behind.next(); t.by == nil {
		delete(k, a.Key)
	} else {
		k[a.Key] = t
	}
	return t.by
}

// Behind returns the first arrival with a key, and how many wait for it.
func (k Keys) Behind(key string) (first *Arrival, waiting int) {
	return k[key].by, k[key].behind.length
}

// Remove takes out the arrivals of a source that wait. Nil: of all.
func (k Keys) Remove(of Source) (removed []*Arrival) {
	for key, t := range k {
		removed = append(removed, t.behind.remove(of)...)
		k[key] = t
	}
	return removed
}
