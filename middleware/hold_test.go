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
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

var errNoBroker = errors.New("no broker")

func TestMessageIsHeldUntilItsCopyIsPublished(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		failedAt := time.Now()
		sent.fail = func(int) error {
			if time.Since(failedAt) < time.Minute {
				return errNoBroker
			}
			return nil
		}
		_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
		require.NoError(t, err)
		copied := sent.only(t)
		assert.Equal(t, "1", copied.msg.Metadata[recordkey.Failures])
		assert.Equal(t, failedAt.UTC().Format("2006-01-02T15:04:05.000Z"), copied.msg.Metadata[recordkey.LastFailedAt])
		assert.LessOrEqual(t, time.Since(failedAt), time.Minute+5*time.Second, "the longest pause is 5 s")
		assert.Less(t, sent.tries, 40, "with back-off")
	})
}

func TestMaxHoldEndsTheHoldWithBothErrors(t *testing.T) {
	ctx := routerContext(t)
	for name, row := range map[string]struct{ set, want time.Duration }{
		"default": {0, 10 * time.Minute},
		"set":     {time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tiered, sent := setup(t, func(c *settings) { c.Policy.MaxHold = row.set })
				sent.fail = func(int) error { return errNoBroker }
				start := time.Now()
				_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
				require.ErrorIs(t, err, errDown)
				require.ErrorIs(t, err, errNoBroker)
				assert.LessOrEqual(t, time.Since(start), row.want)
				assert.Greater(t, time.Since(start), row.want-6*time.Second)
			})
		})
	}
}

func TestShutdownEndsTheHold(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		tiered, sent := setup(t)
		sent.fail = func(int) error { return errNoBroker }
		start := time.Now()
		time.AfterFunc(time.Minute, cancel)
		_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
		require.ErrorIs(t, err, errDown)
		require.ErrorIs(t, err, errNoBroker)
		assert.Equal(t, time.Minute+time.Second, time.Since(start), "at once, after the pause of a shutdown")
	})
}

func TestParkedMessageIsHeldUntilItsCopyIsPublished(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, tiersWait)
		_, err := tiered.Middleware(failing(backoff.RetryAfter(errDown, 6*time.Second)))(messageOf(ctx))
		require.NoError(t, err)
		require.Equal(t, "5s.orders", sent.only(t).topic)
		back := redelivered(ctx, sent.only(t))
		time.Sleep(5 * time.Second) // the tier
		sent.fail = func(try int) error {
			if try < 4 {
				return errNoBroker
			}
			return nil
		}
		_, err = tiered.Middleware(failing(errDown))(back)
		require.NoError(t, err)
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
	ctx := routerContext(t)
	for _, parked := range []bool{false, true} {
		t.Run(fmt.Sprintf("parked=%v", parked), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events []retry.Event
				tiered, sent := setup(t, tiersWait, func(c *settings) {
					c.Observers = eventtest.Observers(func(e retry.Event) { events = append(events, e) })
				})
				msg := messageOf(ctx)
				if parked {
					_, err := tiered.Middleware(failing(backoff.RetryAfter(errDown, 2*time.Second)))(msg)
					require.NoError(t, err)
					msg = redelivered(ctx, sent.only(t))
					sent.copies, sent.tries, events = nil, 0, nil
				}
				sent.fail = func(try int) error {
					if try == 1 {
						return fmt.Errorf("publish: %w", errTooLarge)
					}
					return nil
				}
				start := time.Now()
				_, err := tiered.Middleware(failing(errDown))(msg)
				require.NoError(t, err)
				assert.LessOrEqual(t, time.Since(start), 250*time.Millisecond)
				dead := sent.only(t)
				assert.Equal(t, "dead.orders", dead.topic)
				record, _ := retry.ReadRecord(dead.msg.Metadata)
				assert.Equal(t, retry.DeadReasonTooLarge, record.DeadReason)
				assert.Equal(t, 1, record.Failures)
				assert.Equal(t, errDown.Error(), record.Reason)
				assert.Zero(t, record.DueAt)
				require.Len(t, events, 1)
				assert.Equal(t, retry.DeadReasonTooLarge, events[0].Record.DeadReason)
			})
		})
	}
}

// No other destination could take the message.
func TestDeadLetterThatIsTooLargeIsHeld(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Policy.MaxHold = time.Minute })
		sent.fail = func(int) error { return errTooLarge }
		start := time.Now()
		_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
		require.ErrorContains(t, err, "held for MaxHold")
		assert.Greater(t, time.Since(start), 50*time.Second)
	})
}

func TestMessageIsHeldIfTheDestinationOrThePublisherFails(t *testing.T) {
	ctx := routerContext(t)
	t.Run("destination fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			errDestination := errors.New("no destination")
			tiered, sent := setup(t, func(c *settings) {
				c.Destination = func(backend.Copy) (backend.Destination, error) {
					return backend.Destination{}, errDestination
				}
			})
			_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
			require.ErrorIs(t, err, errDestination)
			assert.Empty(t, sent.copies)
		})
	})
	t.Run("publisher panics", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			tiered, sent := setup(t)
			sent.fail = func(try int) error {
				if try == 1 {
					panic("in the publisher")
				}
				return nil
			}
			_, err := tiered.Middleware(failing(errDown))(messageOf(ctx))
			require.NoError(t, err)
			assert.Equal(t, "1s.orders", sent.only(t).topic)
		})
	})
}

// A publisher may modify the message that it publishes.
func TestEveryPublishGetsANewCopy(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		publisher := &modifyingPublisher{}
		config := configOf(publisher)
		tiered, err := config.Make(nil)
		require.NoError(t, err)
		_, err = tiered.Middleware(failing(errDown))(messageOf(ctx))
		require.NoError(t, err)
		assert.Equal(t, "abc", publisher.trace)
	})
}

// modifyingPublisher modifies each message and fails twice.
type modifyingPublisher struct {
	tries int
	trace string
}

func (p *modifyingPublisher) Publish(_ string, messages ...*message.Message) error {
	p.tries++
	p.trace = messages[0].Metadata["trace"]
	messages[0].Metadata["trace"] = "modified"
	messages[0].Payload = nil
	if p.tries < 3 {
		return errNoBroker
	}
	return nil
}

func (p *modifyingPublisher) Close() error { return nil }
