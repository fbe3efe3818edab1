package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
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
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(routed)
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

// The backend gives the queue of the message to another process: it waits for the call only.
func TestTheBackendEndsTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent, s, _ := setupBound(t)
		sent.fail = always(errNoBroker)
		leaving := make(chan struct{})
		msg := messageOf(s.bind(routed))
		msgctx.Lookup(msg).Leaving = leaving
		start := time.Now()
		time.AfterFunc(time.Minute, func() { close(leaving) })
		_, err := tiered.Middleware(failing(errDown))(msg)
		require.ErrorIs(t, err, errNoBroker)
		assert.Equal(t, time.Minute, time.Since(start))
	})
}

func TestMessageIsHeldIfTheDestinationFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) {
			c.Destination = func(backend.Copy) (backend.Destination, error) { return backend.Destination{}, errNoBroker }
		})
		_, err := tiered.Middleware(failing(errDown))(messageOf(routed))
		require.ErrorIs(t, err, errNoBroker)
		assert.Empty(t, sent.copies)
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
