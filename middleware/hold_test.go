package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

var errNoBroker = errors.New("no broker")

func TestMessageIsHeldUntilItsCopyIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		failedAt := time.Now()
		sent.fail = until(time.Minute, errNoBroker)
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
		copied := sent.only(t)
		assert.Equal(t, "1", copied.msg.Metadata[recordkey.Failures])
		assert.Equal(t, failedAt.UTC().Format("2006-01-02T15:04:05.000Z"), copied.msg.Metadata[recordkey.LastFailedAt])
		assert.LessOrEqual(t, time.Since(failedAt), time.Minute+5*time.Second, "the longest pause is 5 s")
		assert.Less(t, sent.tries, 40, "with back-off")
	})
}

func TestMaxHoldEndsTheHoldWithBothErrors(t *testing.T) {
	for name, row := range map[string]struct{ set, want time.Duration }{
		"default": {0, 10 * time.Minute},
		"set":     {time.Minute, time.Minute},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) { c.Policy.MaxHold = row.set })
			sent.fail = always(errNoBroker)
			start := time.Now()
			_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
			require.ErrorIs(t, err, errDown)
			require.ErrorIs(t, err, errNoBroker)
			assert.LessOrEqual(t, time.Since(start), row.want)
			assert.Greater(t, time.Since(start), row.want-6*time.Second)
		})
	}
}

func TestShutdownEndsTheHold(t *testing.T) {
	ctx := routed
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		tiered, sent := setup(t)
		sent.fail = always(errNoBroker)
		start := time.Now()
		time.AfterFunc(time.Minute, cancel)
		_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
		require.ErrorIs(t, err, errDown)
		require.ErrorIs(t, err, errNoBroker)
		assert.Equal(t, time.Minute+time.Second, time.Since(start), "at once, after the pause of a shutdown")
	})
}

func TestParkedMessageIsHeldUntilItsCopyIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, tiersWait)
		handles(t, tiered.Middleware(failing(backoff.RetryAfter(errDown, 6*time.Second))), messageOf(routed))
		require.Equal(t, "5s.orders", sent.only(t).topic)
		back := redelivered(routed, sent.only(t))
		time.Sleep(5 * time.Second) // the tier
		sent.fail = times(3, errNoBroker)
		handles(t, tiered.Middleware(failing(errDown)), back)
		require.Len(t, sent.copies, 2)
		require.Equal(t, "1s.orders", sent.copies[1].topic)
		parked := sent.copies[1].msg.Metadata
		assert.Equal(t, "1s", back.Metadata[recordkey.Remaining])
		delete(back.Metadata, recordkey.Remaining) // waited for on the last tier
		delete(parked, delay.DelayedForKey)        // the rest of the delay is shorter now
		delete(back.Metadata, delay.DelayedForKey)
		assert.Equal(t, back.Metadata, parked)
	})
}

// A message that is held blocks its handler.
func TestMessageThatIsTooLargeForATierIsDeadLetteredAtOnce(t *testing.T) {
	for _, parked := range []bool{false, true} {
		bubble(t, fmt.Sprintf("parked=%v", parked), func(t *testing.T) {
			tiered, sent := setup(t, tiersWait, observing)
			msg := messageOf(routed)
			if parked {
				handles(t, tiered.Middleware(failing(backoff.RetryAfter(errDown, 2*time.Second))), msg)
				msg = redelivered(routed, sent.only(t))
				sent.copies, sent.tries, sent.events = nil, 0, nil
			}
			sent.fail = firstly(fmt.Errorf("publish: %w", errTooLarge))
			start := time.Now()
			handles(t, tiered.Middleware(failing(errDown)), msg)
			assert.LessOrEqual(t, time.Since(start), 250*time.Millisecond)
			dead := sent.only(t)
			assert.Equal(t, "dead.orders", dead.topic)
			record, _ := retry.ReadRecord(dead.msg.Metadata)
			assert.Equal(t, retry.DeadReasonTooLarge, record.DeadReason)
			assert.Equal(t, 1, record.Failures)
			assert.Equal(t, errDown.Error(), record.Reason)
			assert.Zero(t, record.DueAt)
			require.Len(t, sent.events, 1)
			assert.Equal(t, retry.DeadReasonTooLarge, sent.events[0].Record.DeadReason)
		})
	}
}

// No other destination could take the message.
func TestDeadLetterThatIsTooLargeIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Policy.MaxHold = time.Minute })
		sent.fail = always(errTooLarge)
		start := time.Now()
		_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
		require.ErrorContains(t, err, "held for MaxHold")
		assert.Greater(t, time.Since(start), 50*time.Second)
	})
}

func TestMessageIsHeldIfTheDestinationOrThePublisherFails(t *testing.T) {
	bubble(t, "destination fails", func(t *testing.T) {
		errDestination := errors.New("no destination")
		tiered, sent := setup(t, func(c *settings) {
			c.Destination = func(backend.Copy) (backend.Destination, error) {
				return backend.Destination{}, errDestination
			}
		})
		_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
		require.ErrorIs(t, err, errDestination)
		assert.Empty(t, sent.copies)
	})
	bubble(t, "publisher panics", func(t *testing.T) {
		tiered, sent := setup(t)
		sent.fail = func(try int) error {
			if try == 1 {
				panic("in the publisher")
			}
			return nil
		}
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
		assert.Equal(t, "1s.orders", sent.only(t).topic)
	})
}

// A publisher may modify the message that it publishes.
func TestEveryPublishGetsANewCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Publisher = modifying{c.Publisher} })
		sent.fail = times(2, errNoBroker)
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
		assert.Equal(t, "abc", sent.only(t).msg.Metadata["trace"])
	})
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
