package middleware

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

// TieredRetry is the middleware. It is safe for concurrent use by any number of handlers and routers.
type TieredRetry struct {
	config TieredRetryConfig
	tiers  []backoff.Tier
	logger watermill.LoggerAdapter
}

// NewTieredRetry checks the configuration, all faults at once, and makes the middleware. A nil logger logs nothing.
func NewTieredRetry(config TieredRetryConfig, logger watermill.LoggerAdapter) (*TieredRetry, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid TieredRetryConfig: %w", err)
	}
	config.setDefaults()
	config.Schedule = append(backoff.Schedule(nil), config.Schedule...)
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	return &TieredRetry{config: config, tiers: config.Schedule.Tiers(), logger: logger}, nil
}

// delivery is a message as it was received: payload and metadata are held by reference from before the handler, which may
// replace them.
type delivery struct {
	msg      *message.Message
	uuid     string
	payload  message.Payload
	metadata message.Metadata
	ctx      context.Context
}

// Middleware wraps a handler. Add it to a handler of a router, before all middlewares that can fail:
//
//	router.AddConsumerHandler(...).AddMiddleware(retry.Middleware)
//
// A success costs no allocation.
func (t *TieredRetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		in := delivery{msg: msg, uuid: msg.UUID, payload: msg.Payload, metadata: msg.Metadata, ctx: msg.Context()}
		if t.config.DeepCopy {
			in.payload, in.metadata = bytes.Clone(in.payload), maps.Clone(in.metadata)
		}
		if in.ctx.Err() != nil {
			return nil, t.giveBack(in, in.ctx.Err())
		}
		recorded := carriesRecord(in.metadata)
		if recorded {
			if text, found := in.metadata[UnmarshalErrorKey]; found {
				return nil, t.fail(in, errUnmarshal(text))
			}
			if record, early := t.early(in); early {
				return nil, t.park(in, record)
			}
		}

		returned := false
		defer func() {
			switch {
			case !returned:
				produced, err = nil, t.abort(in, recover())
			case err != nil:
				produced, err = nil, t.fail(in, err)
			case recorded:
				withoutRecord(produced, in.metadata)
			}
		}()
		produced, err = h(msg)
		returned = true
		return produced, err
	}
}

// abort settles a handler that panicked or, where nothing was recovered, ended its goroutine. Nobody reads what the
// middleware returns then, so it settles the message itself.
func (t *TieredRetry) abort(in delivery, recovered any) error {
	if recovered != nil {
		failure := newPanicError(recovered)
		t.logger.Error("Handler panicked", failureText(t.reason(failure)), t.fields(in).Add(watermill.LogFields{"stack": string(failure.Stack)}))
		return t.fail(in, failure)
	}
	err := t.fail(in, ErrGoexit)
	if err == nil {
		in.msg.Ack()
	} else {
		in.msg.Nack()
	}
	return err
}

// fail settles a message whose handler failed: nil once a copy is safe, the failure where the message is to be nacked.
func (t *TieredRetry) fail(in delivery, failure error) error {
	if settled(in.msg) {
		t.logger.Info("Handler failed after it had settled the message itself: nothing is published for it", t.fields(in))
		return failure
	}
	if in.ctx.Err() != nil {
		return t.giveBack(in, failure)
	}

	now := time.Now()
	record, _ := t.record(in, now)
	if record.FirstFailedAt.IsZero() {
		record.FirstFailedAt = now
	}
	record.Failures++
	record.LastFailedAt = now
	record.Reason, record.ErrorType = t.reason(failure), errorType(failure)
	from := originOf(in.ctx)
	record.Topic, record.Handler = from.topic, from.handler

	outcome := decide(t.config.Schedule, t.tiers, record.Failures, failure)
	record.DeadReason = outcome.deadReason
	if outcome.deadReason != "" {
		record.DueAt = time.Time{}
		return t.deadLetter(in, record, failure)
	}
	record.DueAt = now.Add(outcome.delay)
	return t.retry(in, record, outcome, failure)
}

func (t *TieredRetry) retry(in delivery, record Record, outcome decision, failure error) error {
	topic, err := t.hold(in, record, func() (string, error) { return t.retryTopic(record, outcome.tier) })
	if tooLarge(err) {
		record.DeadReason, record.DueAt = DeadReasonTooLarge, time.Time{}
		return t.deadLetter(in, record, failure)
	}
	if err != nil {
		return t.giveBack(in, unpublished(failure, err))
	}
	t.logger.Info("Handler failed, message waits for its retry", t.fields(in).Add(watermill.LogFields{
		"failures": record.Failures, "delay": outcome.delay, "due_at": formatTime(record.DueAt), "tier": outcome.tier.String(), "retry_topic": topic,
		"reason": record.Reason, "error_type": record.ErrorType,
	}))
	if t.config.OnRetry != nil {
		t.observe(in, func() {
			t.config.OnRetry(RetryEvent{
				Topic: record.Topic, Handler: record.Handler, MessageUUID: in.uuid, Failures: record.Failures,
				Delay: outcome.delay, Tier: outcome.tier, DueAt: record.DueAt, RetryTopic: topic, Err: failure,
			})
		})
	}
	return nil
}

func (t *TieredRetry) deadLetter(in delivery, record Record, failure error) error {
	topic, err := t.hold(in, record, func() (string, error) {
		return t.config.GenerateDeadLetterTopic(DeadLetterTopicParams{
			Topic: record.Topic, Handler: record.Handler, Failures: record.Failures, Reason: record.DeadReason,
		})
	})
	if err != nil {
		return t.giveBack(in, unpublished(failure, err))
	}
	t.logger.Error("Message dead-lettered", failureText(record.Reason), t.fields(in).Add(watermill.LogFields{
		"failures": record.Failures, "dead_reason": record.DeadReason, "dead_letter_topic": topic,
		"reason": record.Reason, "error_type": record.ErrorType,
	}))
	if t.config.OnDeadLetter != nil {
		t.observe(in, func() {
			t.config.OnDeadLetter(DeadLetterEvent{
				Topic: record.Topic, Handler: record.Handler, MessageUUID: in.uuid, Failures: record.Failures,
				Reason: record.DeadReason, DeadLetterTopic: topic, Err: failure,
			})
		})
	}
	return nil
}

// giveBack returns the error with which the router nacks the message, so that the broker has it again. At a shutdown it waits
// a moment: a subscriber may go on for as long, at random, and every round through it would count towards the queue's
// delivery limit.
func (t *TieredRetry) giveBack(in delivery, err error) error {
	if in.ctx.Err() != nil {
		t.logger.Info("Shutting down, the message is given back and counts no failure", t.fields(in))
		time.Sleep(shutdownPause)
	}
	return err
}

// park puts a message that came back well before it was due on a tier again, uncounted.
func (t *TieredRetry) park(in delivery, record Record) error {
	tier := tierFor(t.tiers, time.Until(record.DueAt))
	if !t.pace(in, time.Duration(tier)) {
		return t.giveBack(in, in.ctx.Err())
	}
	topic, err := t.hold(in, record, func() (string, error) {
		unfailed := record
		unfailed.Failures = 0
		return t.retryTopic(unfailed, tier)
	})
	if tooLarge(err) {
		record.DeadReason, record.DueAt = DeadReasonTooLarge, time.Time{}
		return t.deadLetter(in, record, err)
	}
	if err != nil {
		return t.giveBack(in, fmt.Errorf("message came back before it was due at %s and cannot be parked: %w", formatTime(record.DueAt), err))
	}
	t.logger.Debug("Message came back before it was due, parked again", t.fields(in).Add(watermill.LogFields{
		"due_at": formatTime(record.DueAt), "retry_topic": topic,
	}))
	if t.config.OnPark != nil {
		t.observe(in, func() {
			t.config.OnPark(ParkEvent{
				Topic: record.Topic, Handler: record.Handler, MessageUUID: in.uuid, Failures: record.Failures,
				Tier: tier, DueAt: record.DueAt, RetryTopic: topic,
			})
		})
	}
	return nil
}

// pace keeps a message that has far longer to wait than the longest tier lasts from circling in a hot loop.
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

// reason is the text of a failure as it may be recorded.
func (t *TieredRetry) reason(failure error) (reason string) {
	if t.config.OmitReason {
		return ""
	}
	if t.config.RedactReason == nil {
		return errorText(failure, maxReason)
	}
	reason = errorText(failure, maxRedacted)
	defer func() {
		if recover() != nil {
			reason = ""
		}
	}()
	return cut(t.config.RedactReason(reason, failure), maxReason)
}

// record is the delivery's failure record, where it counts: on the topic that wrote it.
func (t *TieredRetry) record(in delivery, now time.Time) (Record, bool) {
	record, ok := readRecord(in.metadata, now)
	if !ok || record.Topic != originOf(in.ctx).topic {
		return Record{}, false
	}
	return record, true
}

func (t *TieredRetry) early(in delivery) (Record, bool) {
	now := time.Now()
	record, known := t.record(in, now)
	return record, known && record.DueAt.Sub(now) > t.config.EarlyTolerance
}

func (t *TieredRetry) retryTopic(record Record, tier backoff.Tier) (string, error) {
	return t.config.GenerateRetryTopic(RetryTopicParams{
		Topic: record.Topic, Handler: record.Handler, Tier: tier, Failures: record.Failures,
	})
}

// observe runs a hook, which cannot change the outcome.
func (t *TieredRetry) observe(in delivery, hook func()) {
	returned := false
	defer func() {
		if recovered := recover(); recovered != nil {
			t.logger.Error("Hook of the retry middleware panicked", newPanicError(recovered), t.fields(in))
		} else if !returned {
			in.msg.Ack() // the hook ended the goroutine, so nobody else does; the copy is safe
		}
	}()
	hook()
	returned = true
}

func (t *TieredRetry) fields(in delivery) watermill.LogFields {
	from := originOf(in.ctx)
	return watermill.LogFields{"message_uuid": in.uuid, "topic": from.topic, "handler_name": from.handler}
}

func settled(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

// failureText is a failure's bounded text as an error, for the log: the error itself may be huge, or panic.
type failureText string

func (f failureText) Error() string { return string(f) }
