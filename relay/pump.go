package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// maxKept limits how many messages wait in this process for one tier. Some backends deliver all their messages at
	// once.
	maxKept = 4096

	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second

	// ackTimeout is how long a stopping tier waits until its last acknowledgement is sent.
	ackTimeout = 200 * time.Millisecond
)

var errEnded = errors.New("the subscriber closed its channel")

// pumps are all pumps of a relay, from the first subscription of a handler to the end of the last one.
type pumps struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newPumps() *pumps {
	ctx, cancel := context.WithCancel(context.Background())
	return &pumps{ctx: ctx, cancel: cancel}
}

// start runs a pump that is subscribed.
func (p *pumps) start(pump *pump) {
	pump.health = pump.relay.health.Begin("tier "+pump.tier.String(), pump.topic)
	pump.relay.running.Store(pump, nil)
	p.wg.Go(func() {
		defer pump.health.End()
		defer pump.relay.running.Delete(pump)
		pump.run(p.ctx)
	})
}

// abandon ends the subscriptions of pumps that were never started.
func abandon(all []*pump) {
	for _, pump := range all {
		pump.unsubscribe()
	}
}

// stop does not wait: a pump that is publishing finishes that publish first.
func (p *pumps) stop() { p.cancel() }

func (p *pumps) wait() { p.wg.Wait() }

// pump forwards the messages of one tier's topic. It keeps each message until it is due or its hop has ended, publishes
// a copy to the next topic, and acknowledges the message only after that.
type pump struct {
	tierTopic
	relay      *relay
	subscriber message.Subscriber
	health     *subscriptions.Subscription

	in       <-chan *message.Message
	cancel   context.CancelFunc
	mu       sync.Mutex // held while waiting changes: only the pump changes it
	waiting  queue
	acked    context.Context // of the message that was acknowledged last
	ackedAt  time.Time
	failures int // failed attempts to subscribe, in a row
}

// subscribe uses a context of its own: if a subscription ends before its last acknowledgement is sent, that message
// comes twice.
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
	go func(in <-chan *message.Message) { // a decorated subscriber blocks until its channel is read
		for msg := range in {
			msg.Nack()
		}
	}(p.in)
}

// run forwards messages until the context ends. It subscribes again whenever the subscription ends.
func (p *pump) run(ctx context.Context) {
	for {
		p.forward(ctx)
		p.awaitAck()
		p.unsubscribe()
		for first := true; ; first = false {
			if !sleep(ctx, pause(p.failures)) {
				return
			}
			if first {
				p.relay.logger.Error("Subscription of a tier ended, subscribing again", errEnded, p.fields())
				p.health.Failed(errEnded)
			}
			p.failures++
			err := p.subscribe()
			if err == nil {
				p.health.Consumes()
				break
			}
			p.health.Failed(err)
			p.relay.logger.Error("Cannot subscribe a tier, trying again", err, p.fields())
		}
	}
}

// forward settles each message when its time has come. When the context or the subscription ends, it nacks all messages
// that wait.
func (p *pump) forward(ctx context.Context) {
	defer p.nackAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		in, due := p.in, (<-chan time.Time)(nil)
		if p.waiting.Len() >= maxKept {
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
			p.keep(p.receive(msg))
		case <-due:
			if w := p.take(); !p.settle(w) {
				p.keep(w)
			}
		}
	}
}

// receive sets how long a message waits: until it is due, but no longer than until its hop ends.
func (p *pump) receive(msg *message.Message) *waiter {
	now := time.Now()
	w := &waiter{msg: msg, receivedAt: now, until: now}
	w.record, w.known = retry.ReadRecord(msg.Metadata)
	w.known = w.known && w.record.Handler != ""
	if !w.known {
		return w
	}
	due := dueAt(w.record)
	w.until = earlier(due, now.Add(p.longest+p.slack()))
	if end, found := hopEnd(msg.Metadata); found && due.Sub(end) > p.slack() {
		w.until = earlier(w.until, end)
	}
	return w
}

// settle forwards a message and reports whether it is finished. If not, it sets w.until for the next attempt.
func (p *pump) settle(w *waiter) bool {
	now := time.Now()
	if w.msg.Context().Err() != nil {
		return p.drop(w, now)
	}
	if w.known && p.relay.handlers.unsubscribed(w.record.Handler) && !now.Before(dueAt(w.record)) {
		return p.later(w, now, fmt.Errorf("handler %q has not subscribed to its return topic yet", w.record.Handler))
	}
	topic, metadata := p.next(w, now)
	if err := p.publish(w, topic, metadata); err != nil {
		return p.later(w, time.Now(), err)
	}
	w.msg.Ack()
	p.acked, p.ackedAt = w.msg.Context(), time.Now()
	p.relay.logger.Trace("Message of a tier forwarded",
		p.fields().Add(watermill.LogFields{"message_uuid": w.msg.UUID, "destination": topic}))
	return true
}

// drop does not publish a delivery whose context the backend has cancelled: the backend redelivers the message, and a
// copy would be a duplicate. It waits once before it logs, because a shutdown cancels this context before it stops the
// pump.
func (p *pump) drop(w *waiter, now time.Time) bool {
	if !w.cancelled {
		w.cancelled, w.until = true, now.Add(minPause)
		return false
	}
	w.msg.Nack()
	p.relay.logger.Error("Backend cancelled a message before it was due and will redeliver it: the redelivery limit "+
		"must be well above Hop",
		w.msg.Context().Err(), p.fields().Add(watermill.LogFields{"message_uuid": w.msg.UUID,
			"waited": now.Sub(w.receivedAt), "hop": p.hop}))
	return true
}

// later holds a message that cannot be forwarded and sets the next attempt, with back-off. It nacks the message when
// the next attempt would be later than forwardLimit allows.
func (p *pump) later(w *waiter, now time.Time, err error) bool {
	wait := jitter(pause(w.tries))
	w.tries++
	fields := p.fields().Add(watermill.LogFields{"message_uuid": w.msg.UUID, "handler_name": w.record.Handler,
		"tries": w.tries})
	if now.Add(wait).After(w.receivedAt.Add(p.forwardLimit())) {
		w.msg.Nack()
		p.relay.logger.Error("Cannot forward a message of a tier, giving the message back to the backend", err, fields)
		return true
	}
	w.until = now.Add(wait)
	p.relay.logger.Error("Cannot forward a message of a tier, holding the message", err,
		fields.Add(watermill.LogFields{"next_try_in": wait}))
	return false
}

// forwardLimit is how long a message that cannot be forwarded is held. It is a second on shorter tiers: an outage must
// not cause a burst of nacks.
func (p *pump) forwardLimit() time.Duration {
	return max(p.hop, min(time.Second, p.relay.config.MaxHop))
}

// nackAll gives all messages that wait back to the backend.
func (p *pump) nackAll() {
	for p.waiting.Len() > 0 {
		p.take().msg.Nack()
	}
}

func (p *pump) keep(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.add(w)
}

func (p *pump) take() *waiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting.take()
}

// shown returns what the pump keeps.
func (p *pump) shown() retry.Waiting {
	w := retry.Waiting{Kind: retry.WaitingTier, Queue: p.topic, Tier: p.tier}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Messages = p.waiting.Len()
	for _, kept := range p.waiting.all {
		due := dueAt(kept.record)
		if !kept.known || due.IsZero() {
			due = kept.receivedAt // it does not wait for a delay
		}
		if w.NextDue.IsZero() || due.Before(w.NextDue) {
			w.NextDue = due
		}
	}
	return w
}

// awaitAck waits until the last acknowledgement is sent. Watermill's subscribers cancel a message's context after that.
func (p *pump) awaitAck() {
	if p.acked == nil || time.Since(p.ackedAt) > ackTimeout {
		return
	}
	timer := time.NewTimer(ackTimeout)
	defer timer.Stop()
	select {
	case <-p.acked.Done():
	case <-timer.C:
	}
}

func (p *pump) fields() watermill.LogFields {
	return watermill.LogFields{"topic": p.topic, "tier": p.tier.String()}
}

// pause doubles with every failure, up to maxPause.
func pause(failures int) time.Duration {
	return min(minPause<<min(failures, 10), maxPause)
}

// jitter returns a random duration between half a pause and a whole one, so that messages do not come back together.
func jitter(pause time.Duration) time.Duration { return pause/2 + rand.N(pause/2) }

// sleep reports whether the context lasted for the duration.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
