package middleware

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// harmlessPause is the least time between two tries that may do harm. A copy that may have arrived is a duplicate
	// at the next try: its confirm is waited for while the connection lives. One that is refused for good closes a
	// channel each time.
	harmlessPause = time.Minute

	// surplusHold is how long a message is held of which the handler already has too many: long enough for a reconnect.
	// Then it goes back to the queue, from which the handler takes nothing meanwhile.
	surplusHold = 5 * time.Second
)

// followUp is what follows a try to publish a copy.
type followUp int

const (
	published  followUp = iota
	otherTier           // this tier does not take the copy
	anyTier             // the dead-letter queue does not take it either, so the tiers are tried again
	deadLetter          // no further try with the same copy can help
	giveBack            // the hold has ended
)

// holder publishes the copy of one message. While that fails it keeps the message and tries again: a nack would bring
// the message back at once, and count towards the queue's delivery limit.
type holder struct {
	t      *TieredRetry
	in     *delivery
	until  time.Time      // the end of the hold
	silent []backoff.Tier // the tiers that did not confirm
	tries  int            // the number of tries that have failed
	held   bool           // reported
	counts bool           // at the gate
	aside  bool           // counted there as refused for good
	// surplus is true where the handler held enough messages before. It is no text: a text that escapes would take the
	// delivery with it, which costs every success an allocation.
	surplus bool
}

// publish returns where the copy went, or why it is not published. It returns at once where another decision may help,
// and after MaxHold, at shutdown, and where the publisher is closed or the delivery is lost. suspect is no field for
// the same reason as a text: see surplus.
func (h *holder) publish(d *decision, f *failure, suspect *atomic.Bool) (backend.Destination, followUp, error) {
	for {
		began := time.Now()
		to, err := h.t.publish(h.in, d, suspect)
		if err == nil {
			return to, published, nil
		}
		kind, lost := unpublished.Of(err)
		switch {
		case kind == unpublished.Closed:
			h.in.pace()
			return to, giveBack, err
		case h.in.lost():
			return to, giveBack, err
		case kind == unpublished.Rejected && d.outcome != retry.DeadLettered:
			return to, otherTier, err
		case kind.ForGood() && !d.inLastForm():
			return to, deadLetter, err
		}
		short := pauses.After(h.tries)
		h.tries++
		wait, silent := short, kind == unpublished.Unconfirmed && !lost.Now()
		if !silent {
			lost = unpublished.Lost{}
		}
		if silent || kind.ForGood() {
			wait = max(short, time.Until(began.Add(harmlessPause)))
		}
		if kind.ForGood() && !h.setAside() {
			return to, giveBack, fmt.Errorf("the handler keeps too many messages whose dead letters are refused "+
				"for good: %w", err)
		}
		left := time.Until(h.until)
		if left > 0 {
			h.count(!h.aside, min(wait, left))
			h.hold(d, to, f, min(wait, left), err)
			slept := h.in.await(lost, min(wait, left))
			if slept && lost.Now() { // not at once, and not all of them at the same moment
				silent = false
				slept = h.in.sleep(min(short, left))
			}
			if !slept {
				return to, giveBack, err
			}
		}
		// a copy that may have arrived must not be followed by another at once
		if left <= 0 || silent && wait > left {
			if h.surplus {
				return to, giveBack, fmt.Errorf("the handler holds messages on half of its Concurrency: %w", err)
			}
			return to, giveBack, fmt.Errorf("held for MaxHold, %v: %w", h.t.config.MaxHold, err)
		}
		switch {
		case silent && d.outcome != retry.DeadLettered:
			return to, otherTier, err
		case d.record.DeadReason == retry.DeadReasonNoTier:
			return to, anyTier, err
		}
	}
}

func (h *holder) hold(d *decision, to backend.Destination, f *failure, wait time.Duration, err error) {
	h.t.logger.Error("Cannot publish the copy of the message, holding the message", err,
		h.t.fields(h.in).Add(watermill.LogFields{
			"destination": to.String(), "publish_topic": to.Topic, "next_try_in": wait,
		}))
	if h.held {
		return
	}
	h.held = true
	holding := *d
	holding.outcome = retry.Held
	h.t.report(h.in, &holding, to, f, err)
}

// count counts the message at the gate, or not: a message that is refused for good does not show that others cannot be
// published.
func (h *holder) count(counts bool, wait time.Duration) {
	gate := h.in.gate()
	if gate == nil || h.counts == counts {
		return
	}
	h.counts = counts
	if !counts {
		gate.Release()
	} else if !gate.Hold() {
		if until := time.Now().Add(max(wait, surplusHold)); until.Before(h.until) {
			h.until, h.surplus = until, true
		}
	}
}

// setAside makes a message that is refused for good take no place, where the subscription can do that. It reports false
// where the message is to be given back, because there are too many such messages.
func (h *holder) setAside() bool {
	gate := h.in.gate()
	if gate == nil || h.aside {
		return true
	}
	h.count(false, 0)
	h.aside = true
	room := gate.SetAside()
	if h.in.own == nil || h.in.own.Place == nil {
		return true
	}
	if room {
		h.in.own.Place.SetAside()
	}
	return room
}

// end ends the hold.
func (h *holder) end() {
	h.count(false, 0)
	if h.aside {
		h.in.gate().TakeBack()
	}
}

// publish publishes a copy, because publishers may modify what they publish, under a context that outlives the
// delivery's, and ends where the delivery is lost.
func (t *TieredRetry) publish(in *delivery, d *decision, suspect *atomic.Bool) (to backend.Destination, err error) {
	if panicked := panics.Call(func() { to, err = t.send(in, d, suspect) }); panicked != nil {
		err = fmt.Errorf("the publisher panicked: %w", panicked)
	}
	return to, err
}

// recordSize is how many keys the record of a message that waits usually has. A map with twice the room is slower.
const recordSize = 10

func (t *TieredRetry) send(in *delivery, d *decision, suspect *atomic.Bool) (to backend.Destination, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.seen()), t.config.PublishTimeout)
	defer cancel()
	if in.own != nil && in.own.Lost != nil {
		defer context.AfterFunc(in.own.Lost, cancel)()
	}
	letter := message.NewMessageWithContext(ctx, in.uuid, in.payload)
	size := len(in.metadata)
	if !in.recorded {
		size += recordSize
	}
	letter.Metadata = make(message.Metadata, size)
	maps.Copy(letter.Metadata, in.metadata)
	d.record.Write(letter.Metadata)
	c := backend.Copy{Message: letter, Topic: d.record.Topic, Handler: d.record.Handler, Suspect: suspect}
	if in.bound != nil {
		c.Queue = in.bound.Queue
	}
	switch d.outcome {
	case retry.DeadLettered:
	case retry.Blocked:
		c.Blocked = true
	default:
		c.Tier = d.tier
	}
	to, err = t.backend.Publish(c)
	if off := letter.Metadata[recordkey.LeftOff]; err == nil && d.inLastForm() && off != "" {
		d.record.LeftOff = off // the marshaler has named what it has left off
	}
	return to, err
}
