package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// maxKept limits how many messages wait in this process for one tier. Some backends deliver all their messages at
	// once.
	maxKept = 4096

	// postponeAfter is how long a message that cannot be forwarded is held before it is postponed: published to a tier
	// again. It must not fill the place of messages for other topics.
	postponeAfter = 5 * time.Second

	// postponeFor is how long it then waits at most, where there is a tier as short.
	postponeFor = time.Minute

	// holdFor is how long it is held where it cannot be postponed either.
	holdFor = 20 * time.Second

	// takenBackPause is how long the backend takes nothing back before the next time is in the log again.
	takenBackPause = time.Minute

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
	pump.health.Begin()
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

// pump forwards the messages of one tier's topic. It keeps each message until it is due or its stay has ended,
// publishes a copy to the next topic, and acknowledges the message only after that. Only the goroutine of run changes
// its fields.
type pump struct {
	tierTopic
	relay      *relay
	subscriber message.Subscriber
	health     *subscriptions.Subscription

	in       <-chan *message.Message
	cancel   context.CancelFunc
	waiting  queue
	outlets  map[string]*outlet // what is due and goes to a topic
	done     chan batch         // has been published
	batches  int                // the batches that are being published
	taken    chan struct{}      // the backend has taken messages back
	acked    context.Context    // the context of the message that was acknowledged last
	ackedAt  time.Time
	failures int       // failed attempts to subscribe, in a row
	tookBack time.Time // when the backend has taken a message back, the last time

	mu   sync.Mutex
	kept map[*waiter]struct{} // all that are not settled
}

func newPump(r *relay, tier tierTopic, subscriber message.Subscriber) *pump {
	return &pump{
		tierTopic: tier, relay: r, subscriber: subscriber, outlets: map[string]*outlet{}, done: make(chan batch),
		taken: make(chan struct{}, 1), kept: map[*waiter]struct{}{},
		health: r.health.New("tier "+tier.tier.String(), tier.topic),
	}
}

// subscribe ends early with ctx. The subscription then has a context of its own: if it ends before its last
// acknowledgement is sent, that message comes twice.
func (p *pump) subscribe(ctx context.Context) error {
	own, cancel := context.WithCancel(context.Background())
	detach := context.AfterFunc(ctx, cancel)
	in, err := p.subscriber.Subscribe(p.health.Report(own, p.topic), p.topic)
	if ended := !detach(); err != nil {
		cancel()
		return err
	} else if p.in, p.cancel = in, cancel; ended {
		p.unsubscribe()
		return context.Cause(ctx)
	}
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
			if pauses.Sleep(ctx, pauses.After(p.failures)) != nil {
				return
			}
			if first {
				p.relay.logger.Error("Subscription of a tier ended, subscribing again", errEnded, p.fields())
				p.health.Failed(errEnded)
			}
			p.failures++
			err := p.subscribe(ctx)
			if err == nil {
				p.health.Consumes()
				break
			}
			if ctx.Err() != nil {
				return
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
		if len(p.kept) >= maxKept {
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
			p.forwardDue()
		case b := <-p.done:
			p.finish(b)
		case <-p.taken:
			p.takeBack()
		}
	}
}

// forwardDue forwards all messages whose time has come.
func (p *pump) forwardDue() {
	now := time.Now()
	for p.waiting.Len() > 0 && !p.waiting.all[0].until.After(now) {
		p.settle(p.waiting.take(), now)
	}
	for _, l := range p.outlets {
		p.start(l, now)
	}
}

// receive sets how long a message waits: until it is due, but no longer than on its tier.
func (p *pump) receive(msg *message.Message) *waiter {
	now := time.Now()
	w := &waiter{msg: msg, receivedAt: now, until: now}
	w.record, w.known = retry.ReadRecord(msg.Metadata)
	w.key = cmp.Or(msg.Metadata[recordkey.ReturnTo], relaytopic.Key(w.record.Handler, ""))
	w.known = w.known && w.record.Handler != "" && relaytopic.IsKey(w.key)
	due, last := now, now.Add(p.longest+p.slack())
	if w.known {
		due = dueAt(w.record)
		w.until = earlier(due, last)
	}
	switch end, found := leaveAt(msg.Metadata); {
	case found && end.After(due): // it was postponed
		w.until = earlier(end, last)
	case found && due.Sub(end) > p.slack():
		w.until = earlier(w.until, end)
	}
	return w
}

// settle adds a message whose time has come to the outlet of its next topic.
func (p *pump) settle(w *waiter, now time.Time) {
	if w.gone() {
		p.drop(w, now)
		return
	}
	if w.known && p.relay.handlers.unsubscribed(w.key) && !now.Before(dueAt(w.record)) {
		err := fmt.Errorf("handler %q has not subscribed to its return topic yet", w.record.Handler)
		p.later(w, now, now.Add(pauses.After(w.tries)), err)
		return
	}
	c := outgoing{waiter: w}
	c.topic, c.metadata = p.next(w, now)
	p.outlet(c.topic).add(c)
}

// drop does not publish a delivery whose context the backend has cancelled: the backend redelivers the message, and a
// copy would be a duplicate. It waits once before it logs, because a shutdown cancels this context before it stops the
// pump.
func (p *pump) drop(w *waiter, now time.Time) {
	if !w.cancelled {
		w.cancelled, w.until = true, now.Add(pauses.First)
		p.waiting.add(w)
		return
	}
	p.nack(w)
	log, again := p.relay.logger.Info, now.Sub(p.tookBack) < takenBackPause
	if p.tookBack = now; again {
		log = p.relay.logger.Debug
	}
	log("Backend has taken back messages that waited, and delivers them again: that is no loss, and is to be expected in "+
		"an outage of the backend and at a rebalance. Further ones are logged at the debug level",
		p.fields().Add(watermill.LogFields{"message_uuid": w.msg.UUID, "waited": now.Sub(w.receivedAt)}))
}

// takeBack drops what the backend has taken back, also what is not due: the backend may wait for it.
func (p *pump) takeBack() {
	now := time.Now()
	for _, w := range p.waiting.all {
		if !w.cancelled && w.gone() {
			w.until = now
		}
	}
	p.waiting.sort()
}

// later holds a message that cannot be forwarded until its next attempt, or postpones it. It is nacked when the next
// attempt would be after holdFor.
func (p *pump) later(w *waiter, now, next time.Time, err error) {
	if w.tries++; w.tries == 1 {
		w.failing = now
	}
	if next.Before(w.failing.Add(holdFor)) {
		p.wait(w, now, next, now.Sub(w.failing) > postponeAfter)
		return
	}
	p.nack(w)
	p.relay.logger.Error("Cannot forward a message of a tier, giving the message back to the backend", err,
		p.fields().Add(watermill.LogFields{
			"message_uuid": w.msg.UUID, "handler_name": w.record.Handler, "tries": w.tries,
		}))
}

// nackAll gives all messages that wait back to the backend. What is being published is finished before.
func (p *pump) nackAll() {
	for _, l := range p.outlets {
		l.due = nil
	}
	for p.batches > 0 {
		p.finish(<-p.done)
	}
	for _, w := range slices.SortedFunc(maps.Keys(p.kept), compare) {
		p.nack(w)
	}
	p.waiting.all = nil
	clear(p.outlets)
}

// keep adds a message that was delivered.
func (p *pump) keep(w *waiter) {
	w.unwatch = context.AfterFunc(w.msg.Context(), func() {
		select {
		case p.taken <- struct{}{}:
		default:
		}
	})
	p.waiting.add(w)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept[w] = struct{}{}
}

func (p *pump) nack(w *waiter) {
	p.forget(w)
	w.msg.Nack()
}

func (p *pump) ack(w *waiter) {
	p.forget(w)
	w.msg.Ack()
	p.acked, p.ackedAt = w.msg.Context(), time.Now()
}

// forget comes before the message is settled, which ends its context.
func (p *pump) forget(w *waiter) {
	w.unwatch()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, w)
}

// shown returns what the pump keeps.
func (p *pump) shown() backend.Waiting {
	w := backend.Waiting{Kind: backend.WaitingTier, Queue: p.topic, Tier: p.tier}
	p.mu.Lock()
	defer p.mu.Unlock()
	for kept := range p.kept {
		if kept.gone() {
			continue // it was taken back, and waits elsewhere
		}
		w.Messages++
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
