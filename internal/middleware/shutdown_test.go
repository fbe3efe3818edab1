package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/gate"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/retry"
)

// subscription binds messages as the subscribers of this library do.
type subscription struct {
	binding msgctx.Subscription
	stop    context.CancelFunc
}

// bind returns the context of a message of the subscription. own is the context as its backend makes it.
func (s *subscription) bind(own context.Context) context.Context {
	return msgctx.NewContext(own, &s.binding)
}

// setupBound is setup for messages of a subscription.
func setupBound(t *testing.T, change ...func(*settings)) (*retrymw.TieredRetry, *recorder, *subscription, *logRecorder) {
	t.Helper()
	var source *backend.Source
	tiered, sent := setup(t, append(append([]func(*settings){func(c *settings) { c.Source = sourceOf("email") }}, change...),
		func(c *settings) { source = c.Source })...)
	stopping, stop := context.WithCancel(t.Context())
	own := &subscription{msgctx.Subscription{Stopping: stopping.Done()}, stop}
	if source != nil {
		own.binding.Owner = source.Owner
	}
	return tiered, sent, own, &sent.logs
}

// boundIf is for a middleware without a source where bound is false.
func boundIf(bound bool) func(*settings) {
	return func(c *settings) {
		if !bound {
			c.Source = nil
		}
	}
}

// lines returns how many lines of the log have the words.
func (l *logRecorder) lines(words string) (n int) {
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

// A Timeout of the router ends the message's context. The end of the subscription is another thing: it would end the
// hold of the first copy, too. The context of a message that is not bound cannot signal a shutdown then.
func TestDeadlineSetOutsideIsAFailure(t *testing.T) {
	for _, bound := range []bool{true, false} {
		bubble(t, map[bool]string{true: "bound", false: "not bound"}[bound], func(t *testing.T) {
			tiered, sent, s, logs := setupBound(t, boundIf(bound))
			h := watermillmw.Timeout(time.Minute)(tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				<-msg.Context().Done()
				return nil, msg.Context().Err()
			}))
			ctx := s.bind(routed)
			if !bound { // one deadline alone is taken for that of the subscription
				ctx = routed
				_, err := h(messageOf(ctx))
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			sent.fail = until(3*time.Minute, errNoBroker) // of which a minute is the handler's
			for range 3 {
				handles(t, h, messageOf(each(ctx)))
				assert.Equal(t, "1s.orders", sent.last().topic)
				assert.NoError(t, sent.last().ctxErr, "the copy has a deadline of its own")
			}
			assert.Equal(t, 1, logs.lines("has set a deadline"), "one warning")
			assert.Equal(t, bound, logs.lines("Shutting down") == 0)
		})
	}
}

// The context of Router.Run has a deadline, and the subscriber is not one of this library.
func TestDeadlineOfTheRouterEndsTheHold(t *testing.T) {
	for name, row := range map[string]struct {
		before int  // messages that are processed before
		wrong  bool // the middleware does not fit the subscriber
	}{"the first message": {}, "the third message": {before: 2}, "a message of another source": {wrong: true}} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent, _, logs := setupBound(t, boundIf(row.wrong))
			sent.fail = always(errNoBroker)
			ctx, cancel := context.WithTimeout(routed, time.Minute)
			defer cancel()
			began, failure := time.Now(), error(nil)
			h := tiered.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, failure })
			for range row.before {
				handles(t, h, messageOf(ctx))
				time.Sleep(time.Second)
			}
			failure = errDown
			_, err := h(messageOf(ctx))
			require.Error(t, err)
			assert.Equal(t, time.Minute+time.Second, time.Since(began), "the pause of a shutdown")
			assert.Equal(t, 1, logs.lines("Shutting down"))
			assert.Zero(t, logs.lines("has set a deadline"))
		})
	}
}

// The contexts of messages in flight outlast the end of the subscription. What fails by itself meanwhile counts: at each
// deployment it would otherwise cost a delivery.
func TestFailureWhileTheSubscriptionEnds(t *testing.T) {
	for name, row := range map[string]struct {
		failure error
		topic   string // empty: the message is given back
	}{
		"Canceled": {context.Canceled, ""}, "wrapped": {fmt.Errorf("query: %w", context.Canceled), ""},
		"an error": {errDown, "1s.orders"}, "DeadlineExceeded": {context.DeadlineExceeded, "1s.orders"},
		"permanent": {backoff.Permanent(errDown), "dead.orders"}, "none": {nil, ""},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent, s, logs := setupBound(t, func(c *settings) { c.Policy.Breaker = &retry.Breaker{Least: 1} })
			s.binding.Gate = gate.New(16)
			_, err := watermillmw.Timeout(time.Minute)(tiered.Middleware(func(*message.Message) ([]*message.Message, error) {
				s.stop()
				return nil, row.failure
			}))(messageOf(s.bind(routed)))
			assert.Equal(t, row.topic == "1s.orders", len(s.binding.Gate.Paused()) == 1, "what is given back is no sign")
			if row.topic != "" {
				require.NoError(t, err)
				assert.Equal(t, row.topic, sent.only(t).topic)
				assert.Zero(t, logs.lines("Shutting down"))
				return
			}
			require.Equal(t, row.failure, err)
			assert.Empty(t, sent.copies)
			ended, end := context.WithCancel(routed)
			end()
			_, err = tiered.Middleware(notCalled(t))(messageOf(s.bind(ended)))
			require.ErrorIs(t, err, context.Canceled)
			assert.Empty(t, sent.copies)
			assert.Equal(t, map[bool]int{false: 1, true: 2}[row.failure != nil], logs.lines("Shutting down"))
		})
	}
}

// because returns the error of a backend.
func because(kind unpublished.Kind, text string) error {
	return &unpublished.Error{Kind: kind, Err: errors.New(text)}
}

var (
	errClosedPublisher = because(unpublished.Closed, "the publisher is closed")
	errRefused         = because(unpublished.Refused, "cannot marshal")
	errRejected        = because(unpublished.Rejected, "the tier is full")
	errUnconfirmed     = because(unpublished.Unconfirmed, "no confirmation")
	errTooLarge        = because(unpublished.TooLarge, errNoBroker.Error())
)

var errLater = errors.New("the rate limit is reached")

func snoozeLater(c *settings) {
	c.Policy.Rules = append(c.Policy.Rules, retry.Rule{Name: "later", If: retry.Is(errLater), Then: retry.Snooze(time.Second)})
}

func TestClosedPublisherGivesBackAtOnce(t *testing.T) {
	for _, row := range []struct {
		name    string
		failure error
		paces   bool // the subscriber paces nacks by itself
		want    time.Duration
	}{
		{"retried", errDown, true, 0}, {"dead-lettered", backoff.Permanent(errDown), true, 0}, {"another subscriber", errDown, false, time.Second},
	} {
		bubble(t, row.name, func(t *testing.T) {
			b, _ := withoutBreaker(t, 16)
			if !row.paces {
				b.ctx = msgctx.NewContext(routed, &msgctx.Subscription{Gate: gate.New(16)})
			}
			b.sent.fail = always(errClosedPublisher)
			err := b.handle(failing(row.failure))
			require.ErrorIs(t, err, errDown)
			require.ErrorIs(t, err, errClosedPublisher)
			assert.Equal(t, row.want, time.Since(b.sent.began))
			assert.Equal(t, 1, b.sent.tries)
		})
	}
}
