package relay

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
)

const (
	// mostHeld bounds what a backend that hands everything out at once can make a tier hold.
	mostHeld = 4096

	pauseInitial = 100 * time.Millisecond
	pauseLongest = 5 * time.Second

	// ackPatience is how long a tier that stops waits for its last acknowledgement to reach the backend.
	ackPatience = 200 * time.Millisecond
)

// pumping is all pumps of a relay, from the first subscription of a handler to the end of the last.
type pumping struct {
	ctx    context.Context
	cancel context.CancelFunc
	pumps  []*pump
	wg     sync.WaitGroup
}

func newPumping() *pumping {
	ctx, cancel := context.WithCancel(context.Background())
	return &pumping{ctx: ctx, cancel: cancel}
}

func (p *pumping) add(pump *pump) error {
	if err := pump.subscribe(); err != nil {
		return err
	}
	p.pumps = append(p.pumps, pump)
	return nil
}

func (p *pumping) start() {
	for _, pump := range p.pumps {
		p.wg.Go(func() { pump.run(p.ctx) })
	}
}

// abandon ends what was subscribed and never started.
func (p *pumping) abandon() {
	p.cancel()
	for _, pump := range p.pumps {
		pump.unsubscribe()
	}
}

// stop returns at once: a pump that is publishing finishes that first.
func (p *pumping) stop() { p.cancel() }

func (p *pumping) wait() { p.wg.Wait() }

// pump takes the messages of one tier's topic, holds each until it is due, or its hop has ended, and publishes it to where it
// goes next. It acknowledges a message only after that.
type pump struct {
	tierTopic
	relay      *Relay
	subscriber message.Subscriber

	in       <-chan *message.Message
	cancel   context.CancelFunc
	waiting  queue
	acked    context.Context // of the message that was acknowledged last
	ackedAt  time.Time
	failures int // to subscribe, in a row
}

// subscribe uses a context of its own: a subscription that ends before its last acknowledgement is sent makes a duplicate.
func (p *pump) subscribe() error {
	ctx, cancel := context.WithCancel(context.Background())
	in, err := p.subscriber.Subscribe(ctx, p.topic)
	if err != nil {
		cancel()
		return err
	}
	p.in, p.cancel = in, cancel
	return nil
}

func (p *pump) unsubscribe() {
	p.cancel()
	go func(in <-chan *message.Message) { // subscribers with decorators block until they are read
		for msg := range in {
			msg.Nack()
		}
	}(p.in)
}

// run goes on until the context ends, through all that the backend may do to the subscription.
func (p *pump) run(ctx context.Context) {
	for {
		p.pass(ctx)
		p.finish()
		p.unsubscribe()
		for first := true; ; first = false {
			if !sleep(ctx, pause(p.failures)) {
				return
			}
			if first {
				p.relay.logger.Error("Subscription of a tier has ended, subscribing again", errEnded, p.fields())
			}
			p.failures++
			err := p.subscribe()
			if err == nil {
				break
			}
			p.relay.logger.Error("Cannot subscribe a tier, trying again", err, p.fields())
		}
	}
}

// pass hands on what is due until the context or the subscription ends, and then gives back what it holds.
func (p *pump) pass(ctx context.Context) {
	defer p.giveBack()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		in, due := p.in, (<-chan time.Time)(nil)
		if p.waiting.Len() >= mostHeld {
			in = nil
		}
		if p.waiting.Len() > 0 {
			timer.Reset(time.Until(p.waiting.all[0].until))
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case msg, open := <-in:
			if !open {
				return
			}
			p.failures = 0
			p.waiting.add(p.receive(msg))
		case <-due:
			if h := p.waiting.take(); !p.settle(h) {
				p.waiting.add(h)
			}
		}
	}
}

// receive decides how long to hold a message: until it is due, at the longest until its hop ends.
func (p *pump) receive(msg *message.Message) *held {
	now := time.Now()
	h := &held{msg: msg, receivedAt: now, until: now}
	h.record, h.known = middleware.ReadRecord(msg.Metadata)
	h.known = h.known && h.record.Handler != ""
	if !h.known {
		return h
	}
	due := dueAt(h.record)
	h.until = earlier(due, now.Add(p.hold+p.slack()))
	if end, found := hopEnd(msg.Metadata); found && due.Sub(end) > p.slack() {
		h.until = earlier(h.until, end)
	}
	return h
}

// settle hands a message on, or says false and when to come back to it.
func (p *pump) settle(h *held) bool {
	now := time.Now()
	if h.msg.Context().Err() != nil {
		return p.drop(h, now)
	}
	if h.known && p.relay.handlers.waiting(h.record.Handler) && !now.Before(dueAt(h.record)) {
		return p.later(h, now, fmt.Errorf("handler %q has not subscribed its return topic yet", h.record.Handler))
	}
	next, metadata := p.next(h, now)
	topic, err := p.publish(h, next, metadata)
	if err != nil {
		return p.later(h, time.Now(), err)
	}
	h.msg.Ack()
	p.acked, p.ackedAt = h.msg.Context(), time.Now()
	p.relay.logger.Trace("Message of a tier handed on", p.fields().Add(watermill.LogFields{"message_uuid": h.msg.UUID, "to": topic}))
	return true
}

// drop leaves a delivery that the backend has given up on: it hands the message out again, and publishing this one too would
// make two. At a shutdown that shows a moment before the shutdown itself does.
func (p *pump) drop(h *held, now time.Time) bool {
	if !h.stale {
		h.stale, h.until = true, now.Add(pauseInitial)
		return false
	}
	h.msg.Nack()
	p.relay.logger.Error("Backend gave up on a held message before it was due and will hand it out again: its redelivery limit must be well above Hop",
		h.msg.Context().Err(), p.fields().Add(watermill.LogFields{"message_uuid": h.msg.UUID, "held": now.Sub(h.receivedAt), "hold": p.hold}))
	return true
}

// later holds on to a message that cannot be handed on, with back-off, and gives it back when it may be held no longer.
func (p *pump) later(h *held, now time.Time, err error) bool {
	wait := jitter(pause(h.tries))
	h.tries++
	fields := p.fields().Add(watermill.LogFields{"message_uuid": h.msg.UUID, "handler": h.record.Handler, "tries": h.tries})
	if now.Add(wait).After(h.receivedAt.Add(p.patience())) {
		h.msg.Nack()
		p.relay.logger.Error("Cannot hand a message of a tier on, giving it back to the backend", err, fields)
		return true
	}
	h.until = now.Add(wait)
	p.relay.logger.Error("Cannot hand a message of a tier on, holding it", err, fields.Add(watermill.LogFields{"next_try_in": wait}))
	return false
}

// patience is how long a message may be held altogether. Short tiers get a second, so that an outage is no storm of nacks.
func (p *pump) patience() time.Duration {
	return max(p.hold, min(time.Second, p.relay.config.MaxHop))
}

// giveBack hands everything that is held back to the backend.
func (p *pump) giveBack() {
	for p.waiting.Len() > 0 {
		p.waiting.take().msg.Nack()
	}
}

// finish waits until the last acknowledgement is sent. Watermill's subscribers end a message's context after that.
func (p *pump) finish() {
	if p.acked == nil || time.Since(p.ackedAt) > ackPatience {
		return
	}
	timer := time.NewTimer(ackPatience)
	defer timer.Stop()
	select {
	case <-p.acked.Done():
	case <-timer.C:
	}
}

func (p *pump) fields() watermill.LogFields {
	return watermill.LogFields{"topic": p.topic, "tier": p.tier.String()}
}
