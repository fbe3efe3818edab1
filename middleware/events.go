package middleware

import (
	"context"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Event is the outcome of one delivery, for TieredRetryConfig.Observe. Fields may be added.
type Event struct {
	Context     context.Context // of the message, for its values, such as a trace id. It may have ended
	Outcome     Outcome
	Topic       string // the topic the handler subscribes to
	Handler     string // the handler's name in the router
	MessageUUID string // empty for messages of publishers that set none

	// Record is the failure record of the copy or of the discarded message, this failure included. Of the other outcomes it is the
	// record that the message came with; it is zero at a first try.
	Record Record

	Age         time.Duration // since the first failure; 0 where there is none, or its time is forged
	Duration    time.Duration // of the handler's call; 0 where it was not called
	Delay       time.Duration // how long the copy is to wait
	Spread      time.Duration // how much longer Jitter can make the shortest Delay; 0: the delay has no jitter
	Tier        backoff.Tier  // the tier that it waits on first
	Destination Destination   // where the copy was published
	Rule        string        // the name of the rule that has decided
	Arrived     backoff.Tier  // the tier that the message had waited on first; of a lane its tier; 0: it came from none, or the handler was not called
	Lateness    time.Duration // how long ago it was due when the handler was called, by the clocks of two hosts; 0 where Arrived is
	Err         error         // why the handler failed. Of Held and GivenBack: why the copy cannot be published, where that is the cause

	metadata message.Metadata
}

// Metadata returns a copy of the message's metadata, without the failure record.
func (e Event) Metadata() message.Metadata {
	metadata := maps.Clone(e.metadata)
	for _, key := range recordKeys {
		delete(metadata, key)
	}
	delete(metadata, PropertiesKey)
	delete(metadata, UnmarshalErrorKey)
	return metadata
}

// report calls Observe, where it is set. A panic in it is logged.
func (t *TieredRetry) report(in *delivery, d *decision, to Destination, f *failure, cause error) {
	if t.config.Observe == nil && in.observers == nil {
		return
	}
	in.reported = in.reported || d.outcome != Held
	from := originOf(in.ctx)
	event := Event{
		Context: in.seen(), Outcome: d.outcome, Topic: from.topic, Handler: from.handler, MessageUUID: in.uuid,
		Record: d.record, Duration: in.took, Delay: d.delay, Spread: d.spread, Tier: d.tier, Destination: to, Rule: f.rule, Err: cause,
		Arrived: in.arrived, Lateness: in.lateness,
		metadata: in.metadata,
	}
	if age := time.Since(d.record.FirstFailedAt); age <= backoff.MaxDelay { // else there is no time, or a forged one
		event.Age = age
	}
	if in.observers != nil {
		in.observers.event(&event)
	}
	if t.config.Observe == nil {
		return
	}
	if panicked := call(func() { t.config.Observe(event) }); panicked != nil {
		t.logger.Error("Observe of the retry middleware panicked", panicked, t.fields(in))
	}
}

// reportExited reports a message whose goroutine ended before its outcome was known. Observers wait for the end of what
// they began.
func (t *TieredRetry) reportExited(in *delivery) {
	if !in.reported {
		t.report(in, &decision{outcome: GivenBack}, Destination{}, &failure{}, ErrGoexit)
	}
}

// log writes one line for a delivery that needed a copy, or whose message was discarded.
func (t *TieredRetry) log(in *delivery, d *decision, to Destination, f *failure) {
	if _, silent := t.logger.(watermill.NopLogger); silent {
		return
	}
	fields := t.fields(in)
	fields["failures"] = d.record.Failures
	if d.outcome != Discarded {
		fields["destination"], fields["publish_topic"] = to.String(), to.Topic
	}
	switch d.outcome {
	case DeadLettered:
		fields["dead_reason"] = d.record.DeadReason
		if d.record.LeftOff != "" {
			fields["left_off"] = d.record.LeftOff
		}
	case Retried, Snoozed, Parked:
		fields["tier"], fields["delay"], fields["due_at"] = d.tier.String(), delayText(d.delay), formatTime(d.record.DueAt)
	}
	if d.outcome == Parked {
		t.logger.Debug("Message came back before its delay was over, parked again", fields)
		return
	}
	fields["reason"], fields["error_type"] = d.record.Reason, d.record.ErrorType
	if f.rule != "" {
		fields["rule"] = f.rule
	}
	switch d.outcome {
	case DeadLettered:
		t.logger.Error("Message dead-lettered", loggedError(d.record.Reason), fields)
	case Discarded:
		t.logger.Info("Handler failed, message discarded", fields)
	case Snoozed:
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
		in.observers.logFields(in.seen(), fields)
	}
	return fields
}
