package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

var errNoBroker = errors.New("no broker")

// A publisher may modify the message that it publishes. No other destination than the dead-letter queue can take a dead
// letter.
func TestMessageIsHeldUntilItsCopyIsPublished(t *testing.T) {
	for refusal, failure := range map[error]error{
		errNoBroker: errDown, errRefused: backoff.Permanent(errDown), errRejected: backoff.Permanent(errDown),
		errTooLarge: backoff.Permanent(errDown),
	} {
		bubble(t, fmt.Sprint(refusal, failure), func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) { c.Publisher = modifying{c.Publisher} })
			failedAt := time.Now()
			sent.fail = until(time.Minute, refusal)
			handles(t, tiered.Middleware(failing(failure)), messageOf(routed))
			copied, record := sent.only(t), sent.record(t)
			assert.Equal(t, []any{1, "abc", "order 1", failure != errDown, copied.topic == "1s.orders"},
				[]any{record.Failures, copied.msg.Metadata["trace"], string(copied.msg.Payload),
					record.DeadReason == retry.DeadReasonPermanent, failure == errDown})
			assert.True(t, record.LastFailedAt.Equal(failedAt))
			assert.GreaterOrEqual(t, time.Since(failedAt), time.Minute)
			assert.LessOrEqual(t, time.Since(failedAt), time.Minute+5*time.Second, "the longest pause is 5 s")
			assert.Less(t, sent.tries, 40, "with back-off")
		})
	}
}

// The hold ends at once where something else ends it than MaxHold. Its error has both reasons.
func TestWhatEndsAHold(t *testing.T) {
	const minute = time.Minute
	for name, row := range map[string]struct {
		maxHold time.Duration
		ends    func(s *subscription, end, leave func()) // after a minute
		least   time.Duration
		most    time.Duration
	}{
		"MaxHold, by default": {least: 10*minute - 6*time.Second, most: 10 * minute},
		"MaxHold":             {maxHold: minute, least: minute - 6*time.Second, most: minute},
		"the context":         {ends: func(_ *subscription, end, _ func()) { end() }, least: minute, most: minute},
		"the subscription":    {ends: func(s *subscription, _, _ func()) { s.stop() }, least: minute, most: minute},
		"a shutdown": { // with the pause before a nack
			ends: func(s *subscription, end, _ func()) { s.stop(); end() }, least: minute + time.Second, most: minute + time.Second,
		},
		// The backend gives the queue of the message to another process: it waits for the call only.
		"the backend": {ends: func(_ *subscription, _, leave func()) { leave() }, least: minute, most: minute},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent, s, _ := setupBound(t, func(c *settings) { c.Policy.MaxHold = row.maxHold })
			sent.fail = always(errNoBroker)
			ctx, end := context.WithCancel(routed)
			defer end()
			leaving := make(chan struct{})
			msg := messageOf(s.bind(ctx))
			msgctx.Lookup(msg).Leaving = leaving
			if row.ends != nil {
				time.AfterFunc(minute, func() { row.ends(s, end, func() { close(leaving) }) })
			}
			_, err := tiered.Middleware(failing(errDown))(msg)
			require.ErrorIs(t, err, errDown)
			require.ErrorIs(t, err, errNoBroker)
			assert.GreaterOrEqual(t, time.Since(sent.began), row.least)
			assert.LessOrEqual(t, time.Since(sent.began), row.most)
		})
	}
}

// modifying is a publisher that modifies each message that it could not publish.
type modifying struct{ message.Publisher }

func (p modifying) Publish(topic string, messages ...*message.Message) error {
	err := p.Publisher.Publish(topic, messages...)
	if err != nil {
		messages[0].Metadata["trace"], messages[0].Payload = "modified", nil
	}
	return err
}

// The minute is for a tier that is silent while its connection lives.
func TestACopyWhoseConnectionIsLostIsPublishedAgainSoon(t *testing.T) {
	const silence, pause = 20 * time.Second, 50 * time.Millisecond // not all copies at the moment of the loss
	after := func(d time.Duration) <-chan struct{} {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(d, cancel)
		return ctx.Done()
	}
	for name, row := range map[string]struct {
		lost     func() unpublished.Lost
		earliest time.Duration
		latest   time.Duration
		topic    string
	}{
		"it is lost": {func() unpublished.Lost { return unpublished.ConnectionLost }, 0, time.Second, "1s.orders"},
		"it is lost later": {func() unpublished.Lost { return unpublished.Lost{Connection: after(silence)} },
			silence + pause, silence + time.Second, "1s.orders"},
		"the channel is lost later": {func() unpublished.Lost {
			return unpublished.Lost{Channel: after(silence), Connection: make(chan struct{})}
		}, silence + pause, silence + time.Second, "1s.orders"},
		"both live": {func() unpublished.Lost {
			return unpublished.Lost{Channel: make(chan struct{}), Connection: make(chan struct{})}
		}, time.Minute, time.Minute, "5s.orders"},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t)
			lost := row.lost()
			sent.fail = firstly(&unpublished.Error{Kind: unpublished.Unconfirmed, Err: errNoBroker, Lost: lost})
			began := time.Now()
			handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
			assert.Equal(t, row.topic, sent.only(t).topic)
			assert.GreaterOrEqual(t, time.Since(began), row.earliest)
			assert.LessOrEqual(t, time.Since(began), row.latest)
		})
	}
}

// The broker has given the message out again. To hold it, or to publish its copy, would be for nothing.
func TestAMessageWhoseDeliveryIsLostIsNotHeld(t *testing.T) {
	const loss = 10 * time.Second
	silent := &unpublished.Error{Kind: unpublished.Unconfirmed, Err: errUnconfirmed}
	for name, row := range map[string]struct {
		handler time.Duration
		publish time.Duration // how long the publisher waits, unless the context ends
		err     error
		held    int
		tries   int
		stop    bool
	}{
		"while the broker is away":           {0, 0, errNoBroker, 1, -1, false},
		"while a tier is silent":             {0, 0, silent, 1, 1, false},
		"while the confirm is waited for":    {0, 25 * time.Second, silent, 0, 1, false},
		"while the handler runs":             {loss + time.Second, 0, nil, 0, 0, false},
		"while the handler runs, and a stop": {loss + time.Second, 0, nil, 0, 0, true},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent, s, logs := setupBound(t, observing, func(c *settings) {
				c.Publisher = &waiting{recorder: c.Publisher.(*recorder), wait: row.publish}
			})
			s.binding.Gate = gate.New(2)
			s.binding.Gate.Attach(&valve{})
			lost, lose := context.WithCancel(context.Background())
			defer lose()
			msg := messageOf(s.bind(routed))
			msgctx.Lookup(msg).Lost = lost
			if row.err != nil {
				sent.fail = always(row.err)
			}
			began := time.Now()
			time.AfterFunc(loss-time.Millisecond, func() {
				assert.Equal(t, row.held, s.binding.Gate.Held())
				if row.stop {
					s.stop()
				}
			})
			time.AfterFunc(loss, lose)
			_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
				time.Sleep(row.handler)
				return nil, errDown
			})(msg)
			require.ErrorIs(t, err, errDown)
			assert.Equal(t, max(loss, row.handler), time.Since(began), "at once")
			assert.Zero(t, s.binding.Gate.Held())
			assert.Empty(t, s.binding.Gate.Paused())
			assert.Empty(t, sent.copies)
			if row.tries >= 0 {
				assert.Equal(t, row.tries, sent.tries)
			}
			outcomes := sent.outcomes()
			assert.Equal(t, retry.GivenBack, outcomes[len(outcomes)-1])
			assert.Equal(t, row.held, len(outcomes)-1, "held once, or not")
			last := sent.events[len(sent.events)-1]
			assert.Zero(t, last.Record.Failures)
			assert.Empty(t, last.Metadata[recordkey.Failures])
			assert.Equal(t, 1, logs.lines("The channel of the message is lost"))
		})
	}
}

// waiting is a publisher that waits for a confirm, until the context of the message ends.
type waiting struct {
	*recorder
	wait time.Duration
}

func (w *waiting) Publish(topic string, messages ...*message.Message) error {
	select {
	case <-time.After(w.wait):
	case <-messages[0].Context().Done():
	}
	return w.recorder.Publish(topic, messages...)
}

// refusedText is why a backend refuses a copy for good.
type refusedText string

func (e refusedText) Error() string { return string(e) }

func refusedWith(text string) error {
	return &unpublished.Error{Kind: unpublished.Refused, Err: refusedText(text)}
}

// TestARefusalWithoutATextIsARefusal: the dead letter gets its last form, and is then tried once a minute.
func TestARefusalWithoutATextIsARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Policy.MaxHold = 90 * time.Second })
		sent.fail = func(try int) error {
			require.Less(t, try, 10, "a hot loop")
			return refusedWith("")
		}
		_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
		require.ErrorContains(t, err, "held for MaxHold")
		assert.Equal(t, 5, sent.tries, "retry, dead letter, its last form, after a minute, at the end")
	})
}

// TestSecretsAreInNoLeftOff: the text of a publisher can have values of the message.
func TestSecretsAreInNoLeftOff(t *testing.T) {
	for want, change := range map[string]func(*settings){
		"property type is ***": redacting, "middleware_test.refusedText": typeOnly,
	} {
		bubble(t, want, func(t *testing.T) {
			tiered, sent := setup(t, change)
			sent.fail = times(2, refusedWith("property type is "+secretText))
			handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
			assert.Equal(t, want, sent.only(t).msg.Metadata[recordkey.LeftOff])
		})
	}
}
