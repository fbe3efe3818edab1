package middleware

import (
	"context"
	"errors"
	"maps"
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
func (t *TieredRetry) enter(in *delivery) bool {
	limited := in.gate()
	if t.pauses.Load() {
		in.breaker = t.breakerOf(in)
		limited = in.breaker.gate
	}
	if limited != nil && limited.Limit() != gate.None && !limited.Attached() && !settled(in.msg) {
		if in.place = t.wait(in, limited); in.place == nil {
			return false
		}
	}
	if in.breaker != nil {
		in.pass.of = in.breaker.begin()
	}
	return true
}

// admit asks the breaker about the key of the message. It returns how long the message is to wait; 0: it passes. With
// force it passes in any case.
func (t *TieredRetry) admit(in *delivery, force bool) time.Duration {
	if in.breaker == nil || in.breaker.keys == nil {
		return 0
	}
	if !force {
		if panicked := panics.Call(func() { in.key = gate.ShortKey(t.config.Breaker.Key(in.msg)) }); panicked != nil &&
			!t.keyPanicked.Swap(true) {
			t.logger.Error("Breaker.Key panicked, the message has no key; further panics are not logged", panicked,
				t.fields(in))
		}
	}
	if in.key == "" {
		return 0
	}
	return in.breaker.admit(&in.pass, in.key, force || settled(in.msg))
}

// errNotParked is why the handler is called all the same: to wait, the message would have to be a dead letter.
var errNotParked = errors.New("no tier takes the message")

// park makes a message wait whose key is paused, or has its places. It reports false where no tier takes the message.
func (t *TieredRetry) park(in *delivery, wait time.Duration) (done bool, err error) {
	now := time.Now()
	var s situation
	t.describe(in, &s, false, nil, now)
	s.keyWait = wait
	err = t.settle(in, &s, &failure{rule: keyRule}, now)
	return err != errNotParked, err
}

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

// giveBackPaused gives a message back whose handler was not called.
func (t *TieredRetry) giveBackPaused(in *delivery) error {
	now := time.Now()
	var s situation
	t.describe(in, &s, false, nil, now)
	s.paused = true
	return t.settle(in, &s, &failure{}, now)
}

// observeSuccess makes a success known to the breaker. A message with produced messages has succeeded when the router
// has published them, and acks it.
func (t *TieredRetry) observeSuccess(in *delivery, produced []*message.Message) {
	if len(produced) == 0 || settled(in.msg) {
		in.breaker.report(&in.pass, good)
	} else if in.breaker.wants(in.pass.of, good) {
		go t.observeAck(in.breaker, in.pass, in.msg, in.bound != nil && in.bound.Renacked)
	}
}

// observeAck waits for the router. A message that comes once more, as a failure, is counted then.
func (t *TieredRetry) observeAck(to *breaker, of pass, msg *message.Message, renacked bool) {
	select {
	case <-msg.Acked():
		to.report(&of, good)
	case <-msg.Nacked():
		if !renacked && (t.config.Breaker == nil || t.config.Breaker.Failed == nil ||
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
		in.breaker.holdKey(&in.pass, min(f.requested, t.policy.maxDelay))
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

// isSign calls Breaker.Failed. A panic in it is logged once, with the fields of the delivery, which may be nil.
func (t *TieredRetry) isSign(in *delivery, err error) (sign bool) {
	panicked := panics.Call(func() { sign = t.config.Breaker.Failed(err) })
	if panicked != nil && !t.failedPanicked.Swap(true) {
		var fields watermill.LogFields
		if in != nil {
			fields = t.fields(in)
		}
		t.logger.Error("Breaker.Failed panicked, the error counts as a failure; further panics are not logged",
			panicked, fields)
	}
	return sign || panicked != nil
}
