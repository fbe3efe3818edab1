package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
)

// settle decides and carries the decision out: it publishes the copy, logs, and calls the hook. It returns nil once the copy is
// safe, so that the router acks the message, and an error where the router is to nack it.
func (t *TieredRetry) settle(in *delivery, s *situation, f *failure, now time.Time) error {
	cause := f.err
	if !s.called && s.ended {
		cause = in.ctx.Err()
	}
	for {
		d := t.policy.decide(s, f, now)
		switch d.outcome {
		case Processed:
			return nil
		case Settled:
			t.logger.Info("Handler failed after it had acked or nacked the message itself, no copy is published", t.fields(in))
			return cause
		case GivenBack:
			return t.giveBack(in, cause)
		case Parked:
			if !t.pace(in, time.Duration(d.tier)) {
				return t.giveBack(in, in.ctx.Err())
			}
		}
		to, err := t.hold(in, &d)
		switch {
		case err == nil:
			t.log(in, &d, to)
			t.report(in, &d, to, cause)
			return nil
		case isTooLarge(err) && d.outcome != DeadLettered && s.refused == notRefused: // once, so that the loop always ends
			s.refused = tooLarge
			cause = cmp.Or(cause, err)
		default:
			s.refused = unpublished
			cause = errors.Join(f.err, fmt.Errorf("cannot publish the copy of the message: %w", err))
		}
	}
}

// giveBack returns the error with which the router nacks the message. At a shutdown it waits a moment first: a subscriber may
// go on for as long, and every delivery meanwhile counts towards the queue's delivery limit.
func (t *TieredRetry) giveBack(in *delivery, cause error) error {
	if in.ctx.Err() != nil {
		t.logger.Info("Shutting down, the message is given back and counts no failure", t.fields(in))
		time.Sleep(shutdownPause)
	}
	return cause
}

// pace waits where the tier is very short: a message with a long delay would otherwise be parked in a hot loop. It reports false
// when the subscription has ended.
func (t *TieredRetry) pace(in *delivery, tier time.Duration) bool {
	timer := time.NewTimer(shortestRound - tier)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-in.ctx.Done():
		return false
	}
}

// log writes one line for a copy that was published.
func (t *TieredRetry) log(in *delivery, d *decision, to Destination) {
	if _, silent := t.logger.(watermill.NopLogger); silent {
		return
	}
	fields := t.fields(in)
	fields["failures"], fields["destination"], fields["publish_topic"] = d.record.Failures, to.String(), to.Topic
	if d.outcome == DeadLettered {
		fields["dead_reason"] = d.record.DeadReason
	} else {
		fields["tier"], fields["delay"], fields["due_at"] = d.tier.String(), delayText(d.delay), formatTime(d.record.DueAt)
	}
	if d.outcome == Parked {
		t.logger.Debug("Message came back before its delay was over, parked again", fields)
		return
	}
	fields["reason"], fields["error_type"] = d.record.Reason, d.record.ErrorType
	if d.outcome == DeadLettered {
		t.logger.Error("Message dead-lettered", loggedError(d.record.Reason), fields)
	} else {
		t.logger.Info("Handler failed, message waits for its retry", fields)
	}
}

// delayText spells a delay as the tier queues do, 125s and not 2m5s. A part of a delay may be finer than a tier can be.
func delayText(d time.Duration) string { return backoff.Tier(d.Round(time.Millisecond)).String() }

func (t *TieredRetry) fields(in *delivery) watermill.LogFields {
	from := originOf(in.ctx)
	return watermill.LogFields{"message_uuid": in.uuid, "topic": from.topic, "handler_name": from.handler}
}

// report calls the outcome's hook.
func (t *TieredRetry) report(in *delivery, d *decision, to Destination, cause error) {
	r := &d.record
	switch {
	case d.outcome == Retried && t.config.OnRetry != nil:
		observe(t, in, t.config.OnRetry, RetryEvent{
			Topic: r.Topic, Handler: r.Handler, MessageUUID: in.uuid, Failures: r.Failures,
			Delay: d.delay, Tier: d.tier, DueAt: r.DueAt, Destination: to, Err: cause,
		})
	case d.outcome == Parked && t.config.OnPark != nil:
		observe(t, in, t.config.OnPark, ParkEvent{
			Topic: r.Topic, Handler: r.Handler, MessageUUID: in.uuid, Failures: r.Failures,
			Tier: d.tier, DueAt: r.DueAt, Destination: to,
		})
	case d.outcome == DeadLettered && t.config.OnDeadLetter != nil:
		observe(t, in, t.config.OnDeadLetter, DeadLetterEvent{
			Topic: r.Topic, Handler: r.Handler, MessageUUID: in.uuid, Failures: r.Failures,
			DeadReason: r.DeadReason, Destination: to, Err: cause,
		})
	}
}

// observe runs a hook. A hook cannot change the outcome.
func observe[E any](t *TieredRetry, in *delivery, hook func(E), event E) {
	returned := false
	defer func() {
		if recovered := recover(); recovered != nil {
			t.logger.Error("Hook of the retry middleware panicked", newPanicError(recovered), t.fields(in))
		} else if !returned {
			in.msg.Ack() // the hook ended the goroutine, so the router does not; the copy is safe
		}
	}()
	hook(event)
	returned = true
}
