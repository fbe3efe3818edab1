package middleware_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

// The minute is for a tier that is silent while its connection lives.
func TestACopyWhoseConnectionIsLostIsPublishedAgainSoon(t *testing.T) {
	const silence = 20 * time.Second
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
			silence, silence + time.Second, "1s.orders"},
		"the channel is lost later": {func() unpublished.Lost {
			return unpublished.Lost{Channel: after(silence), Connection: make(chan struct{})}
		}, silence, silence + time.Second, "1s.orders"},
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

// While a connection is lost and comes back again and again, the pause grows as it does for any other error.
func TestTheMinuteIsNotForEachLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		lost := &unpublished.Error{Kind: unpublished.Unconfirmed, Err: errNoBroker, Lost: unpublished.ConnectionLost}
		sent.fail = until(50*time.Second, lost)
		began := time.Now()
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
		assert.LessOrEqual(t, time.Since(began), 55*time.Second, "the longest pause is 5 s")
		assert.Less(t, sent.tries, 40, "with back-off")
	})
}

// losing is the subscription of a message whose channel is lost when lose is called.
type losing struct {
	*subscription
	gate *gate.Gate
	lost context.Context
	lose context.CancelFunc
}

func newLosing(s *subscription) *losing {
	l := &losing{subscription: s, gate: gate.New(2)}
	l.gate.Attach(following{})
	s.binding.Gate = l.gate
	l.lost, l.lose = context.WithCancel(context.Background())
	return l
}

func (l *losing) message() *message.Message {
	msg := messageOf(l.bind(routed))
	msgctx.Lookup(msg).Lost = l.lost
	return msg
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
			l := newLosing(s)
			if row.err != nil {
				sent.fail = always(row.err)
			}
			began := time.Now()
			time.AfterFunc(loss-time.Millisecond, func() {
				assert.Equal(t, row.held, l.gate.Held())
				if row.stop {
					l.stop()
				}
			})
			time.AfterFunc(loss, l.lose)
			_, err := tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
				time.Sleep(row.handler)
				return nil, errDown
			})(l.message())
			require.ErrorIs(t, err, errDown)
			assert.Equal(t, max(loss, row.handler), time.Since(began), "at once")
			assert.Zero(t, l.gate.Held())
			assert.Empty(t, l.gate.Paused())
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

// A copy that is confirmed is safe, and the ack of its message is lost: the outcome is that of the copy.
func TestACopyThatIsConfirmedBeforeTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent, s, _ := setupBound(t, observing)
		l := newLosing(s)
		handles(t, tiered.Middleware(failing(errDown)), l.message())
		l.lose()
		assert.Equal(t, []retry.Outcome{retry.Retried}, sent.outcomes())
	})
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
