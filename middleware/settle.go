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
	fields := t.fields(in)
	fields["failures"], fields["destination"], fields["publish_topic"] = d.record.Failures, to.String(), to.Topic
	if d.outcome == DeadLettered {
		fields["dead_reason"] = d.record.DeadReason
	} else {
		fields["tier"], fields["delay"], fields["due_at"] = d.tier.String(), d.delay, formatTime(d.record.DueAt)
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

func (t *TieredRetry) fields(in delivery) watermill.LogFields {
	from := originOf(in.ctx)
	return watermill.LogFields{"message_uuid": in.uuid, "topic": from.topic, "handler_name": from.handler}
}

// report calls the outcome's hook.
func (t *TieredRetry) report(in delivery, d decision, to Destination, cause error) {
	r := d.record
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
func observe[E any](t *TieredRetry, in delivery, hook func(E), event E) {
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
