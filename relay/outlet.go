package relay

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/pauses"
)

const (
	publishTimeout = 10 * time.Second

	// maxBatch is how many copies are published to a topic at the same time.
	maxBatch = 256

	// maxProbe is that of a topic that has taken none lately. It is more than one, because a topic can refuse one
	// message for itself, for its size for example.
	maxProbe = 16
)

// outgoing is the copy of a message, on its way to a topic.
type outgoing struct {
	*waiter
	topic    string
	metadata message.Metadata
	err      error // the error of its publish
}

// outlet is what is due and goes to one topic. It has one batch at a time, so a topic that takes no messages delays
// none of another topic.
type outlet struct {
	topic string
	due   []outgoing
	busy  bool      // a batch is being published
	tries int       // failed batches in a row
	since time.Time // when the first of them began, or the last batch
	next  time.Time // when a failing topic is tried again
}

// stuck reports whether the topic has taken nothing for long.
func (l *outlet) stuck(now time.Time) bool {
	return (l.busy || l.tries > 0) && now.Sub(l.since) > postponeAfter
}

func (l *outlet) add(c outgoing) { l.due = append(l.due, c) }

func (p *pump) outlet(topic string) *outlet {
	l := p.outlets[topic]
	if l == nil {
		l = &outlet{topic: topic}
		p.outlets[topic] = l
	}
	return l
}

// batch is copies that are published to a topic at the same time.
type batch struct {
	outlet *outlet
	all    []outgoing
}

// start publishes what is due in an outlet, unless its last batch is still being published or has failed lately. It
// also publishes what the backend has taken back meanwhile: a message after it may have been published, and the backend
// may wait for both.
func (p *pump) start(l *outlet, now time.Time) {
	if len(l.due) == 0 {
		return
	}
	if l.busy {
		if l.stuck(now) && p.canPostpone(now) {
			p.hold(l, now)
		}
		return
	}
	most := maxBatch
	if l.tries > 0 {
		most = maxProbe
		if now.Before(l.next) {
			p.hold(l, now)
			return
		}
	}
	most = min(most, len(l.due))
	b := batch{l, l.due[:most:most]}
	l.due = l.due[most:]
	if l.busy = true; l.tries == 0 {
		l.since = now
	}
	p.batches++
	go func() {
		var all sync.WaitGroup
		for i := range b.all {
			all.Go(func() { b.all[i].err = p.publish(b.all[i]) })
		}
		all.Wait()
		p.done <- b
	}()
}

// finish acknowledges what was published, and starts the next batch of the outlet.
func (p *pump) finish(b batch) {
	now, l := time.Now(), b.outlet
	l.busy = false
	p.batches--
	var failed []outgoing
	for _, c := range b.all {
		if c.err != nil {
			failed = append(failed, c)
			continue
		}
		p.ack(c.waiter)
		p.relay.logger.Trace("Message of a tier forwarded",
			p.fields().Add(watermill.LogFields{"message_uuid": c.msg.UUID, "destination": c.topic}))
	}
	if len(failed) < len(b.all) {
		l.tries = 0
	} else {
		l.tries++
	}
	if len(failed) > 0 {
		first := failed[0]
		tries := max(l.tries, first.tries+1)
		wait := pauses.After(tries - 1)
		l.next = now.Add(wait)
		p.relay.logger.Error("Cannot forward messages of a tier, holding them", first.err,
			p.fields().Add(watermill.LogFields{
				"destination": l.topic, "messages": len(failed), "message_uuid": first.msg.UUID,
				"handler_name": first.record.Handler, "tries": tries, "next_try_in": wait,
			}))
		for _, c := range failed {
			p.later(c.waiter, now, l.next, c.err)
		}
	}
	p.start(l, now)
	if !l.busy && l.tries == 0 {
		delete(p.outlets, l.topic)
	}
}

// hold keeps what is due in an outlet until its topic is tried again. Where the topic has taken nothing for long, it is
// postponed at once.
func (p *pump) hold(l *outlet, now time.Time) {
	held := l.due
	l.due = nil
	for _, c := range held {
		p.wait(c.waiter, now, l.next, l.stuck(now))
	}
}

// wait sets when a message is tried again. Where its topic is stuck, it is postponed. Where that fails, it is tried on
// its own topic again.
func (p *pump) wait(w *waiter, now, next time.Time, stuck bool) {
	w.until, w.postponed = next, !w.postponed && stuck && p.canPostpone(now)
	if w.postponed {
		w.until = now
	}
	p.waiting.add(w)
}

// canPostpone reports whether the tier of postponed messages takes some. Where it does not, as in an outage of the
// backend, it is tried less often than the other topics, so that they get their messages at its end.
func (p *pump) canPostpone(now time.Time) bool {
	l := p.outlets[p.relay.tiers.Load().postponed().topic]
	return l == nil || !l.stuck(now) && l.tries == 0 || !l.busy && now.After(l.next.Add(2*pauses.Longest))
}

// publish publishes a copy under a context of its own: the message's context may end with the subscription.
func (p *pump) publish(c outgoing) error {
	if !c.known && !c.postponed {
		p.relay.logger.Error("Message on a tier has no failure record that names a handler, dead-lettering it",
			errForeign, p.fields().Add(watermill.LogFields{"message_uuid": c.msg.UUID, "destination": c.topic}))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.msg.Context()), publishTimeout)
	defer cancel()
	copied := message.NewMessageWithContext(ctx, c.msg.UUID, c.msg.Payload)
	copied.Metadata = c.metadata
	return panics.Error("the publisher", func() error { return p.relay.config.Publisher.Publish(c.topic, copied) })
}
