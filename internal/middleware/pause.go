package middleware

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

// breakers are those of handlers whose messages have no gate, by the name of the handler. The map is replaced, never
// changed.
type breakers map[string]*breaker

// breakerOf returns the breaker of the handler. It is the same one for all messages of a gate.
func (t *TieredRetry) breakerOf(in *delivery) *breaker {
	if in.bound == nil || in.bound.Gate == nil {
		return t.breakerByName(in)
	}
	if b, found := in.bound.Gate.Watcher().(*breaker); found {
		return b
	}
	b, _ := in.bound.Gate.Watch(t.newBreaker(in, in.bound.Gate)).(*breaker)
	return b
}

func (t *TieredRetry) breakerByName(in *delivery) *breaker {
	name := handlerOf(in.ctx)
	for {
		all := t.breakers.Load()
		if all != nil && (*all)[name] != nil {
			return (*all)[name]
		}
		more := breakers{}
		if all != nil {
			maps.Copy(more, *all)
		}
		more[name] = t.newBreaker(in, gate.New(0))
		t.breakers.CompareAndSwap(all, &more)
	}
}

func (t *TieredRetry) newBreaker(in *delivery, g *gate.Gate) *breaker {
	from := originOf(in.ctx)
	return newBreaker(t.config.Breaker, g, t.logger,
		watermill.LogFields{"topic": from.topic, "handler_name": from.handler})
}

// enter waits while the handler is limited and its subscription does not follow the limit by itself. It returns false
// where the message is to be given back.
func (t *TieredRetry) enter(in *delivery, force bool) bool {
	limited := in.gate()
	if t.pauses.Load() {
		in.breaker = t.breakerOf(in)
		limited = in.breaker.gate
	}
	if limited != nil && limited.Limit() != gate.None && !limited.Attached() && !force && !settled(in.msg) {
		if in.place = t.wait(in, limited); in.place == nil {
			return false
		}
	}
	if in.breaker != nil {
		in.pass.of = in.breaker.begin()
	}
	return true
}

// admit makes the message wait if its key is paused, or has its places, and reports whether it does. With force it does
// not, nor where no tier takes it.
func (t *TieredRetry) admit(in *delivery, force bool) (done bool, err error) {
	if in.breaker == nil || t.config.Breaker == nil || t.config.Breaker.Key == nil {
		return false, nil
	}
	t.guard(in, &t.keyPanicked, "Breaker.Key panicked, the message has no key; further panics are not logged",
		func() { in.key = gate.ShortKey(t.config.Breaker.Key(in.msg)) })
	if in.key == "" {
		return false, nil
	}
	if wait := in.breaker.admit(&in.pass, in.key, force || settled(in.msg)); wait > 0 {
		if err = t.settleUncalled(in, wait); err != errNotParked {
			return true, err
		}
		in.breaker.admit(&in.pass, in.key, true)
	}
	return false, nil
}

// errNotParked is why the handler is called all the same: to wait, the message would have to be a dead letter.
var errNotParked = errors.New("no tier takes the message")

// wait waits as long as the message may stay unacknowledged.
func (t *TieredRetry) wait(in *delivery, limited *gate.Gate) *gate.Place {
	ctx, cancel := context.WithTimeout(in.ctx, t.config.MaxHold)
	defer cancel()
	return limited.Enter(ctx, in.stopping())
}

// leave ends what enter has begun.
func (in *delivery) leave() {
	if in.breaker != nil {
		in.breaker.leave(&in.pass)
	}
	if in.place != nil {
		in.place.Leave()
	}
}

// errPaused is why a message is given back whose handler was not called.
var errPaused = errors.New("the handler is paused, and the message cannot be kept any longer")

// settleUncalled settles a message whose handler was not called: it waits because of its key, or is given back because
// the handler is paused.
func (t *TieredRetry) settleUncalled(in *delivery, keyWait time.Duration) error {
	now := time.Now()
	var s situation
	t.describe(in, &s, false, nil, now)
	var f failure
	if s.keyWait, s.paused = keyWait, keyWait == 0; keyWait > 0 {
		f.rule = keyRule
	}
	return t.settle(in, &s, &f, now)
}

// observeSuccess makes a success known to the breaker. A message with produced messages has succeeded when the router
// has published them, and acks it.
func (t *TieredRetry) observeSuccess(in *delivery, produced []*message.Message) {
	if len(produced) == 0 || settled(in.msg) {
		in.breaker.report(&in.pass, good)
	} else if in.breaker.wants(in.pass.of, good) {
		go t.observeAck(in.breaker, in.pass, in.msg, in.bound != nil)
	}
}

// observeAck waits for the router. A bound message comes once more, as a failure, and is counted then.
func (t *TieredRetry) observeAck(to *breaker, of pass, msg *message.Message, bound bool) {
	select {
	case <-msg.Acked():
		to.report(&of, good)
	case <-msg.Nacked():
		if !bound && (t.config.Breaker == nil || t.config.Breaker.Failed == nil ||
			t.isSign(nil, retry.ErrNotPublished)) {
			to.report(&of, bad)
		}
	}
}

// observeFailure makes a failure known to the breaker, and pauses the handler where a rule says so. The failure of a
// probe does not count.
func (t *TieredRetry) observeFailure(in *delivery, s *situation, f *failure) {
	pause := f.action.Pause
	if s.ended || in.breaker == nil && pause == 0 {
		return
	}
	if in.breaker == nil {
		t.pauses.Store(true)
		in.breaker = t.breakerOf(in)
	}
	if pause > 0 {
		in.breaker.pauseFor(in.pass.of, pause, f.rule)
		return
	}
	s.probe = in.breaker.report(&in.pass, t.verdictOf(in, f))
	if in.pass.key != nil && f.requested > 0 {
		in.breaker.hold(&in.pass, min(f.requested, t.policy.maxDelay))
	}
}

func (t *TieredRetry) verdictOf(in *delivery, f *failure) verdict {
	if ofFirstDelivery(f.err) {
		return noSign
	}
	sign := f.retried()
	if t.config.Breaker != nil && t.config.Breaker.Failed != nil {
		sign = t.isSign(in, f.err)
	}
	if sign {
		return bad
	}
	return noSign
}

// isSign calls Breaker.Failed. A panic in it counts as a sign. in may be nil.
func (t *TieredRetry) isSign(in *delivery, err error) (sign bool) {
	panicked := t.guard(in, &t.failedPanicked,
		"Breaker.Failed panicked, the error counts as a failure; further panics are not logged",
		func() { sign = t.config.Breaker.Failed(err) })
	return sign || panicked
}

// guard calls a function of the app. A panic in it is logged, with the fields of the delivery, which may be nil: only
// the first one, unless logged is nil.
func (t *TieredRetry) guard(in *delivery, logged *atomic.Bool, text string, call func()) (panicked bool) {
	err := panics.Call(call)
	if err != nil && (logged == nil || !logged.Swap(true)) {
		var fields watermill.LogFields
		if in != nil {
			fields = t.fields(in)
		}
		t.logger.Error(text, err, fields)
	}
	return err != nil
}
