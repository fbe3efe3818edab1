package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/retry"
)

var errTakenBack = errors.New("the backend has ended the message's context before the subscription: it delivers the " +
	"message again")

// settle decides and carries the decision out: it publishes the copy, logs, and calls Observe. It returns nil once the
// copy is safe, so that the router acks the message, and an error where the router is to nack it.
func (t *TieredRetry) settle(in *delivery, s *situation, f *failure, now time.Time) error {
	cause := f.err
	switch {
	case s.ended && !s.called: // the text of a marshaler's error may be a secret
		cause = cmp.Or(in.ctx.Err(), context.Canceled)
	case s.paused && cause == nil:
		cause = errPaused
	}
	held := holder{t: t, in: in, until: time.Now().Add(t.config.MaxHold)}
	suspect := new(atomic.Bool) // see Copy
	defer held.end()
	for {
		d := t.policy.decide(s, f, now)
		switch d.outcome {
		case retry.Processed, retry.Recovered, retry.Duplicate:
			return nil
		case retry.Settled:
			t.logSettled(in, f)
			t.report(in, &d, backend.Destination{}, f, cause)
			return cause
		case retry.GivenBack:
			t.report(in, &d, backend.Destination{}, f, cause)
			if in.lost() || in.takenBack() {
				t.outlived.keep(in, f.err)
			}
			return t.giveBack(in, s, cause)
		case retry.Discarded:
			in.safe = true
			t.log(in, &d, backend.Destination{}, f)
			t.report(in, &d, backend.Destination{}, f, cause)
			return nil
		}
		if s.keyWait > 0 && d.outcome.GivenUp() && d.record.DeadReason != retry.DeadReasonExpired {
			return errNotParked
		}
		if d.cut > 0 && !t.cut.Swap(true) {
			t.logCut(in, &d)
		}
		if s.called { // one that waits for its key keeps its place: where no tier takes it, its handler is called
			in.endCall()
		}
		to, next, err := held.publish(&d, f, suspect)
		switch next {
		case published:
			in.safe = true
			t.log(in, &d, to, f)
			t.report(in, &d, to, f, cause)
			return nil
		case otherTier:
			t.logAvoided(in, &d, to, err)
			s.avoid = append(s.avoid, d.tier)
			if unpublished.KindOf(err) == unpublished.Unconfirmed {
				held.silent = append(held.silent, d.tier)
			}
			if _, _, left := t.policy.place(d.delay, s.avoid); !left && len(held.silent) > 0 {
				// a tier that only did not confirm is not full
				s.avoid, held.silent = without(s.avoid, held.silent), nil
			}
		case anyTier:
			s.avoid, held.silent = nil, nil
		case giveBack:
			s.unpublished = true
			cause = errors.Join(f.err, fmt.Errorf("cannot publish the copy of the message: %w", err))
		case deadLetter:
			if d.outcome == retry.DeadLettered {
				// never empty, which would be a letter that is not refused
				s.last = cmp.Or(t.reason(err), errorType(err))
			} else {
				s.refused = unpublished.KindOf(err)
			}
			cause = cmp.Or(cause, err)
		}
	}
}

// logCut warns once: a delay that an app requests is meant, and one that a stranger has forged comes again.
func (t *TieredRetry) logCut(in *delivery, d *decision) {
	warning.Log(t.logger, "A message requests a delay that is longer than MaxDelay, and waits for MaxDelay. Later "+
		"cuts are not logged. If such "+
		"delays are wanted, set Policy.MaxDelay", t.fields(in).Add(watermill.LogFields{"requested": d.cut,
		"max_delay": t.config.MaxDelay}))
}

// logAvoided writes one line for a tier that did not take the copy. Another one, or the dead-letter destination, gets
// it at once.
func (t *TieredRetry) logAvoided(in *delivery, d *decision, to backend.Destination, err error) {
	t.logger.Info("A tier did not take the copy of the message, trying another one",
		t.fields(in).Add(watermill.LogFields{
			"tier": d.tier.String(), "destination": to.String(), "err": errorText(err, maxReason),
		}))
}

// without returns the tiers that are not in the second list.
func without(tiers, remove []backoff.Tier) []backoff.Tier {
	return slices.DeleteFunc(tiers, func(t backoff.Tier) bool { return slices.Contains(remove, t) })
}

// logSettled logs a failure after an ack as an error: the message may be lost. The line has the handler's error: the
// router does not log one that wraps the end of a context, and the context ends at the ack.
func (t *TieredRetry) logSettled(in *delivery, f *failure) {
	fields := t.fields(in).Add(watermill.LogFields{"reason": f.reason, "error_type": f.errorType})
	select {
	case <-in.msg.Acked():
		t.logger.Error("Handler failed after it had acked the message itself: no copy is published, and the message "+
			"may be lost", f.logged(), fields)
	default:
		t.logger.Info("Handler failed after it had nacked the message itself, no copy is published", fields)
	}
}

// giveBack returns the error with which the router nacks the message. At a shutdown it waits a moment first: a
// subscriber may go on for as long, and every delivery meanwhile counts towards the queue's delivery limit.
func (t *TieredRetry) giveBack(in *delivery, s *situation, cause error) error {
	switch {
	case in.lost() && in.own.Err() == nil:
		t.logger.Info("The channel of the message is lost: the broker delivers the message again, and counts no failure",
			t.fields(in))
	case in.shuttingDown():
		t.logger.Info("Shutting down, the message is given back and counts no failure", t.fields(in))
		if in.ctx.Err() != nil {
			time.Sleep(shutdownPause)
		}
	case in.takenBack():
		counts := "counts no failure"
		if in.isKept() {
			counts = "its failure is kept for its next delivery"
		}
		t.logger.Error("The message is given back, and "+counts+": the time for its ack must be longer than the "+
			"handler takes", errTakenBack, t.fields(in))
	case s.paused:
		t.logger.Info("The handler is paused, the message is given back and counts no failure", t.fields(in))
	case !s.unpublished: // a rule
		if in.own != nil {
			in.own.Outlived = nil // the rule has decided about it: the handler is called with the next delivery
		}
		t.logger.Info("Handler failed, message given back", t.fields(in))
		in.sleep(shutdownPause)
	}
	return cause
}
