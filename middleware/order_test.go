package middleware_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// The tests of this file check the claims of the page docs/middleware-order.md with Watermill's middlewares.

// order runs one message through the middlewares, the first one outermost, and returns its story.
type order struct {
	t        *testing.T
	kit      *retrytest.App
	schedule backoff.Schedule
	calls    int // of the handler
}

func newOrder(t *testing.T) *order {
	schedule := backoff.Schedule{time.Second, 5 * time.Second}
	return &order{t: t, kit: retrytest.New(t, schedule), schedule: schedule}
}

func (o *order) send(handler message.NoPublishHandlerFunc, middlewares ...message.HandlerMiddleware) *retrytest.Story {
	o.t.Helper()
	o.kit.Router.AddConsumerHandler("billing", "orders", o.subscriber(), func(msg *message.Message) error {
		o.calls++
		return handler(msg)
	}).AddMiddleware(middlewares...)
	return o.kit.Send("orders", message.NewMessage("order-1", []byte("order 1")))
}

func (o *order) subscriber() message.Subscriber {
	o.t.Helper()
	subscriber, err := o.kit.Subscriber("billing")
	require.NoError(o.t, err)
	return subscriber
}

func outcomes(story *retrytest.Story) string {
	var words []string
	for _, attempt := range story.Attempts() {
		words = append(words, string(attempt.Outcome))
	}
	return strings.Join(words, ", ")
}

// fails is a handler that fails so many times.
func fails(times int) message.NoPublishHandlerFunc {
	var calls atomic.Int64
	return func(*message.Message) error {
		if calls.Add(1) <= int64(times) {
			return errDown
		}
		return nil
	}
}

// seen is a middleware that looks at what the middlewares inside it return, as metrics and traces do.
type seen struct{ successes, failures int }

func (s *seen) middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		produced, err := h(msg)
		if err == nil {
			s.successes++
		} else {
			s.failures++
		}
		return produced, err
	}
}

// A middleware of the router and one of a handler are in one list: what counts is which was added first.
func TestOrderOfRouterMiddlewares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOrder(t)
		var before, after seen
		o.kit.Router.AddMiddleware(before.middleware)
		handler := o.kit.Router.AddConsumerHandler("billing", "orders", o.subscriber(), fails(1))
		handler.AddMiddleware(o.kit.Middleware)
		o.kit.Router.AddMiddleware(after.middleware)
		o.kit.Send("orders", message.NewMessage("order-1", nil)).Processed()
		assert.Equal(t, seen{successes: 2}, before)
		assert.Equal(t, seen{successes: 1, failures: 1}, after)
	})
}

func untilTimeout(msg *message.Message) error {
	<-msg.Context().Done()
	return msg.Context().Err()
}

// permanent is a handler that fails for good.
func permanent(*message.Message) error { return backoff.Permanent(errDown) }

var twice = wmmiddleware.Retry{MaxRetries: 2, InitialInterval: 100 * time.Millisecond, MaxInterval: time.Second, Multiplier: 2}

func TestOrderInsideAndOutside(t *testing.T) {
	type list = []message.HandlerMiddleware
	const all = "retried, retried, dead-lettered"
	timeout := list{wmmiddleware.Timeout(time.Minute)}
	checks := twice
	checks.ShouldRetry = func(p wmmiddleware.RetryParams) bool { return !backoff.IsPermanent(p.Err) }
	delays := &wmmiddleware.DelayOnError{InitialInterval: 2 * time.Second, MaxInterval: time.Hour, Multiplier: 3}
	for name, row := range map[string]struct {
		handler         message.NoPublishHandlerFunc
		outside, inside list
		want            string // the outcomes
		calls           int
		waits           backoff.Schedule // nil: the schedule
	}{
		"Timeout inside": {untilTimeout, nil, timeout, all, 3, nil},
		// Only the end of the subscription is a shutdown.
		"Timeout outside":     {untilTimeout, timeout, nil, all, 3, nil},
		"a panic":             {panics, nil, nil, all, 3, nil},
		"Recoverer inside":    {panics, nil, list{wmmiddleware.Recoverer}, all, 3, nil},
		"Recoverer outside":   {panics, list{wmmiddleware.Recoverer}, nil, all, 3, nil},
		"Retry inside":        {fails(4), nil, list{twice.Middleware}, "retried, recovered", 5, nil},
		"Retry outside":       {fails(1), list{twice.Middleware}, nil, "retried, recovered", 2, nil},
		"Retry, permanent":    {permanent, nil, list{twice.Middleware}, "dead-lettered", 3, nil},
		"ShouldRetry checks":  {permanent, nil, list{checks.Middleware}, "dead-lettered", 1, nil},
		"InstantAck":          {fails(1), nil, list{wmmiddleware.InstantAck}, "settled", 1, nil},
		"DelayOnError inside": {fails(3), nil, list{delays.Middleware}, all, 3, backoff.Schedule{2 * time.Second, 6 * time.Second}},
		// It multiplies what it finds in the metadata, and the message is acknowledged.
		"DelayOnError outside": {fails(3), list{delays.Middleware}, nil, all, 3, nil},
		// The retry has the payload of the message that failed: it is a duplicate, and the handler is not called.
		"Deduplicator inside":  {fails(1), nil, list{deduplicator(t, nil).Middleware}, "retried, recovered", 1, nil},
		"Deduplicator outside": {fails(1), list{deduplicator(t, nil).Middleware}, nil, "retried, recovered", 1, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			o := newOrder(t)
			story := o.send(row.handler, slices.Concat(row.outside, list{o.kit.Middleware}, row.inside)...)
			assert.Equal(t, row.want, outcomes(story))
			assert.Equal(t, row.calls, o.calls)
			waits := row.waits
			if waits == nil {
				waits = o.schedule[:strings.Count(row.want, "retried")]
			}
			if len(waits) > 0 {
				story.Waited(waits...)
			}
		})
	}
}

func panics(*message.Message) error { panic("boom") }

// Timeout leaves its context, which has ended, on the message: the next call of Watermill's Retry needs a new one.
func TestOrderTimeoutInsideWatermillRetry(t *testing.T) {
	resets := twice
	resets.ResetContextOnRetry = true
	for _, test := range []struct {
		name  string
		retry wmmiddleware.Retry
		alive int
	}{{"as it is", twice, 1}, {"with ResetContextOnRetry", resets, 3}} {
		bubble(t, test.name, func(t *testing.T) {
			o := newOrder(t)
			alive := 0
			o.send(func(msg *message.Message) error {
				if msg.Context().Err() == nil {
					alive++
				}
				return backoff.RetryAfter(untilTimeout(msg), time.Hour)
			}, once(o.kit.Middleware), test.retry.Middleware, wmmiddleware.Timeout(time.Minute))
			assert.Equal(t, test.alive, alive)
		})
	}
}

// once lets only the first delivery through.
func once(tiered message.HandlerMiddleware) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		first := true
		return tiered(func(msg *message.Message) ([]*message.Message, error) {
			if !first {
				return nil, nil
			}
			first = false
			return h(msg)
		})
	}
}

func TestDuplicateOfTheSameTryIsDropped(t *testing.T) {
	tooMany := errors.New("too many")
	tiered, sent := setup(t, tiersWait, func(c *settings) {
		c.Policy.Rules = []retry.Rule{{If: retry.Is(tooMany), Then: retry.Snooze(time.Second)}}
	})
	deduplicate := deduplicator(t, retrymw.DeduplicationKey(nil)).Middleware
	failures, calls := []error{tooMany, errDown, tooMany, errDown}, 0
	h := tiered.Middleware(deduplicate(func(*message.Message) ([]*message.Message, error) {
		calls++
		if calls > len(failures) {
			return nil, nil
		}
		return nil, failures[calls-1]
	}))
	msg := messageOf(routed)
	for try := range len(failures) + 1 {
		for range 3 { // the second and third are duplicates
			handles(t, h, redelivered(routed, publishedCopy{msg: msg}))
		}
		assert.Equal(t, try+1, calls)
		require.Len(t, sent.copies, min(try+1, len(failures)))
		msg = sent.last().msg
	}

	other := redelivered(routed, publishedCopy{msg: messageOf(routed)})
	other.SetContext(msgctx.WithOrigin(routed, topic, "mail"))
	_, err := h(other)
	require.NoError(t, err)
	assert.Equal(t, len(failures)+2, calls, "the message of another handler is no duplicate")
}

func TestDeduplicationKey(t *testing.T) {
	keyOf := func(hasher wmmiddleware.MessageHasher, change func(*message.Message)) string {
		msg := messageOf(context.Background())
		change(msg)
		key, err := retrymw.DeduplicationKey(hasher)(msg)
		require.NoError(t, err)
		return key
	}
	first := keyOf(nil, func(*message.Message) {})
	assert.Equal(t, first, keyOf(nil, func(m *message.Message) { m.Payload = []byte("other") }), "the UUID decides")
	assert.NotEqual(t, first, keyOf(nil, func(m *message.Message) { m.UUID = "uuid-2" }))
	withoutUUID := keyOf(nil, func(m *message.Message) { m.UUID = "" })
	assert.NotEqual(t, withoutUUID, keyOf(nil, func(m *message.Message) { m.UUID, m.Payload = "", []byte("other") }), "the payload decides")
	byPayload := func(m *message.Message) (string, error) { return string(m.Payload), nil }
	assert.Equal(t, keyOf(byPayload, func(*message.Message) {}), keyOf(byPayload, func(m *message.Message) { m.UUID = "uuid-2" }))
	assert.Equal(t, first, keyOf(nil, func(m *message.Message) {
		retry.Record{Failures: 1, Topic: "another topic"}.Write(m.Metadata)
	}), "the record of another topic does not count")
	_, err := retrymw.DeduplicationKey(func(*message.Message) (string, error) { return "", errDown })(messageOf(context.Background()))
	require.ErrorIs(t, err, errDown)
}

// A message that is given back after its handler was called has the same key when it comes again: it is dropped, and lost.
func TestOrderDeduplicatorLosesWhatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		ctx, cancel := context.WithCancel(context.Background())
		calls := 0
		handler := tiered.Middleware(deduplicator(t, retrymw.DeduplicationKey(nil)).Middleware(func(*message.Message) ([]*message.Message, error) {
			calls++
			cancel()
			return nil, errDown
		}))
		_, err := handler(messageOf(ctx))
		require.ErrorIs(t, err, errDown, "given back at the shutdown")
		_, err = handler(messageOf(context.Background()))
		require.NoError(t, err, "acknowledged")
		assert.Equal(t, 1, calls, "the handler is not called for the redelivery")
		assert.Empty(t, sent.copies)
	})
}

func deduplicator(t *testing.T, key wmmiddleware.MessageHasher) *wmmiddleware.Deduplicator {
	t.Helper()
	return &wmmiddleware.Deduplicator{KeyFactory: key, Repository: &keys{}, Timeout: time.Second}
}

// keys is a repository whose keys do not expire; Watermill's own has a goroutine that never ends.
type keys struct{ known map[string]bool }

func (k *keys) IsDuplicate(_ context.Context, key string) (bool, error) {
	if k.known == nil {
		k.known = map[string]bool{}
	}
	duplicate := k.known[key]
	k.known[key] = true
	return duplicate, nil
}

// A copy has the payload of its message: a failure publisher with a Deduplicator drops it and returns nil.
func TestOrderDeduplicatorOnTheFailurePublisherLosesCopies(t *testing.T) {
	published, err := deduplicator(t, func(msg *message.Message) (string, error) { return string(msg.Payload), nil }).
		PublisherDecorator()(&recorder{})
	require.NoError(t, err)
	tiered, sent := setup(t, func(c *settings) { c.Publisher = published })
	for range 2 { // two messages with one payload
		handles(t, tiered.Middleware(failing(errDown)), messageOf(routed))
	}
	assert.Empty(t, sent.copies)
}

func TestOrderPoisonQueueInsideTakesFailures(t *testing.T) {
	poison := &recorder{}
	poisonQueue, err := wmmiddleware.PoisonQueue(poison, "poison")
	require.NoError(t, err)
	tiered, sent := setup(t)
	const warning = "PoisonQueue inside of the retry middleware"
	handles(t, tiered.Middleware(poisonQueue(failing(nil))), messageOf(routed))
	assert.NotContains(t, sent.logs.String(), warning)
	handles(t, tiered.Middleware(poisonQueue(failing(errDown))), messageOf(routed))
	assert.Empty(t, sent.copies, "no retry")
	redriven := redelivered(routed, poison.only(t))
	handles(t, tiered.Middleware(poisonQueue(failing(errDown))), messageOf(routed))
	assert.Equal(t, 1, strings.Count(sent.logs.String(), warning))

	// A letter that was sent back brings the reason of its first failure.
	tiered, sent = setup(t)
	handles(t, tiered.Middleware(poisonQueue(failing(nil))), redriven)
	assert.NotContains(t, sent.logs.String(), warning)
}

// Outside it gets what the retry middleware gives back: a shutdown poisons a message that has retries left.
func TestOrderPoisonQueueOutsideTakesWhatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := &recorder{}
		poisonQueue, err := wmmiddleware.PoisonQueue(poison, "poison")
		require.NoError(t, err)
		tiered, sent := setup(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = poisonQueue(tiered.Middleware(failing(nil)))(messageOf(ctx))
		require.NoError(t, err, "acknowledged")
		assert.Empty(t, sent.copies)
		poison.only(t)
	})
}

// A message that is parked takes a turn of a Throttle outside, and none of one inside.
func TestOrderThrottle(t *testing.T) {
	for name, outside := range map[string]bool{"outside": true, "inside": false} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, tiersWait)
			handles(t, tiered.Middleware(failing(backoff.RetryAfter(errDown, 2*time.Second))), messageOf(context.Background()))
			early := redelivered(context.Background(), sent.only(t))

			throttle := wmmiddleware.NewThrottle(1, 100*time.Millisecond).Middleware
			chain := tiered.Middleware(throttle(failing(nil)))
			if outside {
				chain = throttle(tiered.Middleware(failing(nil)))
			}
			began := time.Now()
			_, err := chain(early)
			require.NoError(t, err)
			require.Len(t, sent.copies, 2, "parked")
			assert.Equal(t, outside, time.Since(began) >= 100*time.Millisecond)
		})
	}
}

// The circuit breaker opens after more than five failures in a row. Inside, TestOpenCircuitBreakerInsidePauses.
func TestOrderCircuitBreakerOutsideNeverOpens(t *testing.T) {
	tiered, sent := setup(t)
	chain := wmmiddleware.NewCircuitBreaker(gobreaker.Settings{}).Middleware(tiered.Middleware(failing(errDown)))
	for range 10 {
		handles(t, chain, messageOf(routed))
	}
	require.Len(t, sent.copies, 10)
	assert.Equal(t, errDown.Error(), sent.record(t).Reason)
	assert.Equal(t, 1, sent.record(t).Failures)
}

func TestOrderIgnoreErrors(t *testing.T) {
	ignore := wmmiddleware.NewIgnoreErrors([]error{errDown})
	tiered, sent := setup(t)
	handles(t, tiered.Middleware(ignore.Middleware(failing(errDown))), messageOf(routed))
	assert.Empty(t, sent.copies, "inside it works")
	handles(t, ignore.Middleware(tiered.Middleware(failing(errDown))), messageOf(routed))
	sent.only(t) // outside it does not
}

// The copy has the metadata of the message as it was received, so a retry belongs to the same trace. What is written into the
// metadata inside is in the copy too, unless DeepCopy is set.
func TestOrderMetadataOfTraces(t *testing.T) {
	for _, deep := range []bool{false, true} {
		tiered, sent := setup(t, func(c *settings) { c.Policy.DeepCopy = deep })
		handles(t, tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set("span", "inside")
			return nil, errDown
		}), messageOf(routed))
		metadata := sent.only(t).msg.Metadata
		assert.Equal(t, "abc", metadata["trace"])
		assert.Equal(t, !deep, metadata["span"] == "inside")
	}
}

// CorrelationID reads the message's metadata, which every retry has: it may be on either side.
func TestOrderCorrelationID(t *testing.T) {
	tiered, sent := setup(t)
	produces := func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("bill-1", nil)}, nil
	}
	first := messageOf(routed)
	wmmiddleware.SetCorrelationID("c-1", first)
	handles(t, tiered.Middleware(failing(errDown)), first)
	for _, chain := range []message.HandlerFunc{
		wmmiddleware.CorrelationID(tiered.Middleware(produces)), tiered.Middleware(wmmiddleware.CorrelationID(produces)),
	} {
		back := redelivered(routed, sent.only(t))
		produced, err := chain(back)
		require.NoError(t, err)
		assert.Equal(t, "c-1", wmmiddleware.MessageCorrelationID(produced[0]))
	}
}

// What the router cannot publish is nacked below every middleware: no retry.
func TestOrderProducedMessagesAreOutsideOfAll(t *testing.T) {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	tiered, sent := setup(t)
	tries := make(chan struct{})
	refuses := &recorder{fail: func(try int) error {
		tries <- struct{}{}
		return errors.New("the exchange is gone")
	}}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddHandler("billing", "orders", pubSub, "bills", refuses, func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{message.NewMessage("bill-1", nil)}, nil
	}).AddMiddleware(tiered.Middleware)
	require.NoError(t, pubSub.Publish("orders", message.NewMessage("order-1", nil)))
	go func() { _ = router.Run(context.Background()) }()
	<-tries
	<-tries // it came back at once
	go func() {
		for range tries {
		}
	}()
	require.NoError(t, router.Close())
	assert.Empty(t, sent.copies)
}
