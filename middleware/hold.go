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

// unpublished is the error of a message that is nacked because its copy could not be published.
func unpublished(failure, publish error) error {
	return errors.Join(failure, fmt.Errorf("cannot publish the failed message: %w", publish))
}

// hold publishes a copy with this record and returns the topic it went to. While that fails it keeps the message and goes
// on trying: a nack would bring the message back at once, and count towards the queue's delivery limit. It gives up after
// MaxHold or at shutdown, and at once where a tier cannot take the message: then a dead-letter topic may.
func (t *TieredRetry) hold(in delivery, record Record, topicOf func() (string, error)) (string, error) {
	until := time.Now().Add(t.config.MaxHold)
	for pause := holdInitial; ; pause = min(2*pause, holdLongest) {
		topic, err := t.publish(in, record, topicOf)
		if err == nil || record.DeadReason == "" && tooLarge(err) {
			return topic, err
		}
		// Half of the pause is chance, so that handlers do not come back together.
		wait := pause/2 + rand.N(pause/2)
		if time.Now().Add(wait).After(until) {
			return "", fmt.Errorf("held for MaxHold, %v: %w", t.config.MaxHold, err)
		}
		t.logger.Error("Cannot publish the failed message, holding it", err, t.fields(in).Add(watermill.LogFields{"next_try_in": wait}))

		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-in.ctx.Done():
			timer.Stop()
			return "", err
		}
	}
}

// tooLarge asks the publisher's error itself, by behaviour: no further try would help.
func tooLarge(err error) bool {
	var size interface{ TooLarge() bool }
	return errors.As(err, &size) && size.TooLarge()
}

// publish makes a copy, for publishers may modify what they publish, under a context that outlives the delivery's.
func (t *TieredRetry) publish(in delivery, record Record, topicOf func() (string, error)) (topic string, err error) {
	returned := false
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("the publisher panicked: %w", newPanicError(recovered))
		} else if !returned {
			in.msg.Nack() // the publisher ended the goroutine, so nobody else does
		}
	}()
	if topic, err = topicOf(); err != nil {
		returned = true
		return "", fmt.Errorf("cannot generate the topic: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.ctx), t.config.PublishTimeout)
	defer cancel()
	letter := message.NewMessageWithContext(ctx, in.uuid, in.payload)
	letter.Metadata = make(message.Metadata, len(in.metadata)+len(recordKeys)+len(delayKeys))
	maps.Copy(letter.Metadata, in.metadata)
	record.write(letter.Metadata)
	if record.DeadReason != "" {
		record.writePoison(letter.Metadata, message.SubscriberNameFromCtx(in.ctx))
	}
	err = t.config.Publisher.Publish(topic, letter)
	returned = true
	return topic, err
}
