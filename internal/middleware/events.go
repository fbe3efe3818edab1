package middleware

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/cause"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/retry"
)

// report makes an outcome known to the observers.
func (t *TieredRetry) report(in *delivery, d *decision, to backend.Destination, f *failure, cause error) {
	if in.observers == nil {
		return
	}
	in.reported = in.reported || d.outcome != retry.Held
	from := originOf(in.ctx)
	event := retry.Event{
		Context: in.seen(), Outcome: d.outcome, Topic: from.topic, Handler: from.handler, MessageUUID: in.uuid,
		Record: d.record, Duration: in.took, Delay: d.delay, Spread: d.spread, Tier: d.tier,
		Destination: to.String(), Metadata: in.metadata,
		Rule: f.rule, Err: cause,
		Arrived: in.arrived, Lateness: in.lateness,
	}
	if age := time.Since(d.record.FirstFailedAt); age <= backoff.MaxDelay { // else there is no time, or a forged one
		event.Age = age
	}
	in.observers.Event(&event)
}

// reportExited reports a message whose goroutine ended before its outcome was known. Observers wait for the end of what
// they began.
func (t *TieredRetry) reportExited(in *delivery) {
	if !in.reported {
		t.report(in, &decision{outcome: retry.GivenBack}, backend.Destination{}, &failure{}, panics.ErrGoexit)
	}
}

// log writes one line for a delivery that needed a copy, or whose message was discarded.
func (t *TieredRetry) log(in *delivery, d *decision, to backend.Destination, f *failure) {
	if _, silent := t.logger.(watermill.NopLogger); silent {
		return
	}
	fields := t.fields(in)
	fields["failures"] = d.record.Failures
	if d.outcome != retry.Discarded {
		fields["destination"], fields["publish_topic"] = to.String(), to.Topic
	}
	switch {
	case d.outcome.GivenUp():
		fields["dead_reason"] = d.record.DeadReason
		fields["cause"] = cause.ID(d.record.ErrorType, cause.Normalise(d.record.Reason))
		if d.record.LeftOff != "" {
			fields["left_off"] = d.record.LeftOff
		}
	case d.outcome.Waits():
		fields["tier"], fields["delay"] = d.tier.String(), delayText(d.delay)
		fields["due_at"] = d.record.DueAt.UTC().Format(time.RFC3339Nano)
	}
	if d.outcome == retry.Parked {
		text := "Message came back before its delay was over, parked again"
		if f.rule == keyRule {
			text = "The key of the message is limited, the message waits"
			fields["key"] = d.record.Key
		}
		t.logger.Debug(text, fields)
		return
	}
	fields["reason"], fields["error_type"] = d.record.Reason, d.record.ErrorType
	if f.rule != "" {
		fields["rule"] = f.rule
	}
	switch d.outcome {
	case retry.DeadLettered:
		t.logger.Error("Message dead-lettered", loggedError(d.record.Reason), fields)
	case retry.Blocked:
		t.logger.Error("Message blocks its key until wmretry order skips or retries it", loggedError(d.record.Reason),
			fields)
	case retry.Discarded:
		t.logger.Info("Handler failed, message discarded", fields)
	case retry.Snoozed:
		t.logger.Info("Handler failed, message snoozed", fields)
	default:
		t.logger.Info("Handler failed, message waits for its retry", fields)
	}
}

// delayText spells a delay as the tier queues do, 125s and not 2m5s. A part of a delay may be finer than a tier can be.
func delayText(d time.Duration) string { return backoff.Tier(d.Round(time.Millisecond)).String() }

func (t *TieredRetry) fields(in *delivery) watermill.LogFields {
	from := originOf(in.ctx)
	fields := watermill.LogFields{"message_uuid": in.uuid, "topic": from.topic, "handler_name": from.handler}
	if in.observers != nil {
		in.observers.LogFields(in.seen(), fields)
	}
	return fields
}
