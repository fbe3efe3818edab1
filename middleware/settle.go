package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// settle carries a decision out: it publishes the copy, logs, and calls the hook. It returns nil once the copy is safe, so that
// the router acks the message, and an error where the router is to nack it. Cause is the handler's error.
func (t *TieredRetry) settle(in delivery, d decision, cause error) error {
	switch d.outcome {
	case "", Processed:
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
	to, err := t.hold(in, d)
	switch {
	case tooLarge(err) && d.outcome != DeadLettered:
		if cause == nil {
			cause = err
		}
		return t.settle(in, deadLetter(d.record, DeadReasonTooLarge, originOf(in.ctx)), cause)
	case err != nil:
		return t.giveBack(in, unpublished(cause, err))
	}
	t.log(in, d, to)
	t.report(in, d, to, cause)
	return nil
}

// unpublished is the error of a message that is nacked because its copy could not be published.
func unpublished(cause, publish error) error {
	return errors.Join(cause, fmt.Errorf("cannot publish the copy of the message: %w", publish))
}

// giveBack returns the error with which the router nacks the message. At a shutdown it waits a moment first: a subscriber may
// go on for as long, and every delivery meanwhile counts towards the queue's delivery limit.
func (t *TieredRetry) giveBack(in delivery, cause error) error {
	if in.ctx.Err() != nil {
		t.logger.Info("Shutting down, the message is given back and counts no failure", t.fields(in))
		time.Sleep(shutdownPause)
	}
	return cause
}

// pace keeps a message that has far longer to wait than the longest tier lasts from a hot loop. It reports whether the
// subscription lasted.
func (t *TieredRetry) pace(in delivery, tier time.Duration) bool {
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
func (t *TieredRetry) log(in delivery, d decision, to Destination) {
	fields := t.fields(in).Add(watermill.LogFields{"failures": d.record.Failures, "destination": to.String(), "publish_topic": to.Topic})
	switch d.outcome {
	case Parked:
		t.logger.Debug("Message came back before its delay was over, parked again", fields.Add(watermill.LogFields{
			"due_at": formatTime(d.record.DueAt), "tier": d.tier.String(),
		}))
	case Retried:
		t.logger.Info("Handler failed, message waits for its retry", fields.Add(watermill.LogFields{
			"delay": d.delay, "due_at": formatTime(d.record.DueAt), "tier": d.tier.String(),
			"reason": d.record.Reason, "error_type": d.record.ErrorType,
		}))
	case DeadLettered:
		t.logger.Error("Message dead-lettered", loggedError(d.record.Reason), fields.Add(watermill.LogFields{
			"dead_reason": d.record.DeadReason, "reason": d.record.Reason, "error_type": d.record.ErrorType,
		}))
	}
}

func (t *TieredRetry) fields(in delivery) watermill.LogFields {
	from := originOf(in.ctx)
	return watermill.LogFields{"message_uuid": in.uuid, "topic": from.topic, "handler_name": from.handler}
}

// report calls the outcome's hook.
func (t *TieredRetry) report(in delivery, d decision, to Destination, cause error) {
	r, c := d.record, t.config
	switch {
	case d.outcome == Retried && c.OnRetry != nil:
		t.observe(in, func() {
			c.OnRetry(RetryEvent{
				Topic: r.Topic, Handler: r.Handler, MessageUUID: in.uuid, Failures: r.Failures,
				Delay: d.delay, Tier: d.tier, DueAt: r.DueAt, Destination: to, Err: cause,
			})
		})
	case d.outcome == Parked && c.OnPark != nil:
		t.observe(in, func() {
			c.OnPark(ParkEvent{
				Topic: r.Topic, Handler: r.Handler, MessageUUID: in.uuid, Failures: r.Failures,
				Tier: d.tier, DueAt: r.DueAt, Destination: to,
			})
		})
	case d.outcome == DeadLettered && c.OnDeadLetter != nil:
		t.observe(in, func() {
			c.OnDeadLetter(DeadLetterEvent{
				Topic: r.Topic, Handler: r.Handler, MessageUUID: in.uuid, Failures: r.Failures,
				DeadReason: r.DeadReason, Destination: to, Err: cause,
			})
		})
	}
}

// observe runs a hook. A hook cannot change the outcome.
func (t *TieredRetry) observe(in delivery, hook func()) {
	returned := false
	defer func() {
		if recovered := recover(); recovered != nil {
			t.logger.Error("Hook of the retry middleware panicked", newPanicError(recovered), t.fields(in))
		} else if !returned {
			in.msg.Ack() // the hook ended the goroutine, so the router does not; the copy is safe
		}
	}()
	hook()
	returned = true
}
