package middleware

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	holdInitial = 100 * time.Millisecond
	holdLongest = 5 * time.Second
)

// hold publishes the copy and returns where it went. While that fails it keeps the message and tries again: a nack would bring
// the message back at once, and count towards the queue's delivery limit. It gives up after MaxHold or at shutdown. It returns
// at once where a tier cannot take the message, because a dead-letter destination may.
func (t *TieredRetry) hold(in *delivery, d *decision) (Destination, error) {
	until := time.Now().Add(t.config.MaxHold)
	for pause := holdInitial; ; pause = min(2*pause, holdLongest) {
		to, err := t.publish(in, d)
		if err == nil || d.outcome != DeadLettered && isTooLarge(err) {
			return to, err
		}
		// Half of the pause is random, so that handlers do not try at the same moment.
		wait := pause/2 + rand.N(pause/2)
		if time.Now().Add(wait).After(until) {
			return Destination{}, fmt.Errorf("held for MaxHold, %v: %w", t.config.MaxHold, err)
		}
		t.logHold(in, to, wait, err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-in.ctx.Done():
			timer.Stop()
			return Destination{}, err
		case <-in.stopping:
			timer.Stop()
			return Destination{}, err
		}
	}
}

func (t *TieredRetry) logHold(in *delivery, to Destination, wait time.Duration, err error) {
	t.logger.Error("Cannot publish the copy of the message, holding the message", err, t.fields(in).Add(watermill.LogFields{
		"destination": to.String(), "publish_topic": to.Topic, "next_try_in": wait,
	}))
}

// isTooLarge reports whether no further try with the same message would help. It asks the publisher's error for a method, so
// that this package imports no publisher.
func isTooLarge(err error) bool {
	var size interface{ TooLarge() bool }
	return errors.As(err, &size) && size.TooLarge()
}

// publish publishes a copy, because publishers may modify what they publish, under a context that outlives the delivery's.
func (t *TieredRetry) publish(in *delivery, d *decision) (to Destination, err error) {
	returned := false
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("the publisher panicked: %w", newPanicError(recovered))
		} else if !returned {
			in.msg.Nack() // the publisher ended the goroutine, so the router does not
		}
	}()
	if to, err = t.destination(d, in.source); err != nil {
		returned = true
		return Destination{}, fmt.Errorf("cannot generate the destination: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.ctx), t.config.PublishTimeout)
	defer cancel()
	letter := message.NewMessageWithContext(ctx, in.uuid, in.payload)
	letter.Metadata = make(message.Metadata, len(in.metadata)+len(ownKeys)+len(delayKeys))
	maps.Copy(letter.Metadata, in.metadata)
	d.record.write(letter.Metadata)
	err = t.config.Publisher.Publish(to.Topic, letter)
	returned = true
	return to, err
}

// destination asks the configuration, or the source of the message, where the copy goes.
func (t *TieredRetry) destination(d *decision, from *Source) (Destination, error) {
	retry, deadLetter := t.config.GenerateRetryDestination, t.config.GenerateDeadLetterDestination
	if from != nil {
		retry, deadLetter = from.GenerateRetryDestination, from.GenerateDeadLetterDestination
	}
	r := &d.record
	if d.outcome == DeadLettered {
		return deadLetter(DeadLetterDestinationParams{Topic: r.Topic, Handler: r.Handler, Failures: r.Failures, DeadReason: r.DeadReason})
	}
	params := RetryDestinationParams{Topic: r.Topic, Handler: r.Handler, Tier: d.tier, Failures: r.Failures}
	if d.outcome == Parked {
		params.Failures = 0
	}
	return retry(params)
}
