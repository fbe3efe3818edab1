package retry

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Breaker configures when a handler pauses: it takes no new messages while most of them fail, because what it depends
// on is down. The messages stay in the work queue, in order and uncounted. After a pause one message is let through,
// the probe. If it succeeds, the handler goes on with 1, 2, 4 and more messages in flight; if it fails, the next pause
// is twice as long. The zero value has all defaults.
//
// Messages that are in flight when the pause begins end as usual, and their failures count. A probe that fails is
// snoozed, on the shortest tier or for the delay that its error requests, and its failure does not count: where few
// messages wait, each of them would otherwise use up its retries as a probe. A probe that fails with an error that is
// no sign (see Failed) is settled as usual, and the next message is the probe. A limit counts places: what is delivered
// and not settled, whether its handler was called or not. Where all places are taken and nothing has moved for
// MaxPause, one message more is let through, so that a handler that hangs, a message that waits for its key, or
// one that is held does not stop the others. A Timeout inside of the retry middleware makes a handler that hangs a
// failure.
//
// On RabbitMQ, the consumer of a Connection's handler is cancelled, so that no message stays unacknowledged. On other
// backends, and with other subscribers, the middleware keeps each message that it gets for up to MaxHold before it
// calls the handler, or for a shorter time that the backend sets. Then the message is nacked, uncounted.
//
// Each handler has a breaker of its own, in each process.
type Breaker struct {
	// Ratio is the share of failures from which on the handler pauses. The default is 0.5. More than 0 and at most 1.
	Ratio float64

	// Least is how many outcomes there must be before Ratio counts. The default is 20, or 5 with a Key. With fewer, the
	// handler does not pause. The last five times Least outcomes are counted. So a handler without outcomes pauses
	// after Least failures in a row, and one that had only successes after Ratio of five times Least: 50 with the
	// defaults.
	Least int

	// Window is how old the outcomes may be that are counted. The default is 10 seconds, or a minute with a Key. Set it
	// so that Least messages can fail within it: with 16 calls and a timeout of 30 seconds, to a minute.
	Window time.Duration

	// Pause is the first pause. It doubles with each probe that fails, up to MaxPause, and is shortened at random by up
	// to a quarter, so that instances do not try at the same moment. The defaults are 1 second and 30 seconds. After
	// the end of an outage, it takes up to MaxPause until the handler goes on.
	Pause, MaxPause time.Duration

	// Failed reports whether an error is a sign that others fail, too. An error that is none is not counted. The
	// default is every error but those of backoff.Permanent where no rule matches, and those that a rule snoozes,
	// dead-letters, discards or gives back. A panic in Failed counts as a sign. It must be safe for concurrent use.
	// Optional.
	Failed func(error) bool

	// Key returns the key of a message, such as its tenant: then the breaker is one by key. Ratio, Least, Window and
	// Pause are those of each key, and a key whose messages fail pauses alone. While it does, its messages wait on a
	// tier, uncounted, a second or more for each copy; where no tier takes one, its handler is called. An error with
	// backoff.RetryAfter pauses its key for that time. When more than half of the keys that were seen within Window have
	// paused because they fail, two at least, and no message with a key has succeeded since, the handler pauses in their
	// place.
	//
	// A message without a key ("") counts for the handler, as without Key. A key has at most 255 bytes: a longer one is
	// cut, with its hash. 10,000 keys are remembered, and those that are limited are forgotten last. Key is called for
	// each message before its handler. A panic in it is logged, and the message has no key. It must be safe for
	// concurrent use. Optional.
	Key func(*message.Message) string
	// Share is how much of Concurrency the calls of one key may hold if they are slow: where they have held more than
	// this share for longer than Pause, others were called meanwhile, and they take more than twice as long as the
	// calls of others, the key gets a place less than that until it is as fast as others again. What is over waits as
	// that of a paused key. A key that is alone has all places. The default is 0.5. More than 0 and at most 1. It needs
	// Key, and a Concurrency of two at least.
	Share float64
}

// validate reports all faults, joined. Zero fields are valid: they have defaults.
func (b Breaker) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if b.Ratio < 0 || b.Ratio > 1 || b.Ratio != b.Ratio {
		fault("Ratio is %v: it must be more than 0 and at most 1, or 0 for the default", b.Ratio)
	}
	if b.Share < 0 || b.Share > 1 || b.Share != b.Share {
		fault("Share is %v: it must be more than 0 and at most 1, or 0 for the default", b.Share)
	}
	if b.Share != 0 && b.Key == nil {
		fault("Share is %v, but Key is nil: set both", b.Share)
	}
	if b.Least < 0 {
		fault("Least is %d: it must be 0 (the default) or more", b.Least)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"Window", b.Window}, {"Pause", b.Pause}, {"MaxPause", b.MaxPause}} {
		if d.value < 0 {
			fault("%s is %v: it must be 0 (the default) or more", d.field, d.value)
		}
	}
	if b.Pause > 0 && b.MaxPause > 0 && b.Pause > b.MaxPause {
		fault("Pause is %v: it must be at most MaxPause, %v", b.Pause, b.MaxPause)
	}
	return errors.Join(faults...)
}
