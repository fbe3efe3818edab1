package middleware_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// The tests of this file check the claims of the page docs/middleware-order.md with Watermill's middlewares.

// fails is a handler that fails so many times.
func fails(times int) message.NoPublishHandlerFunc {
	return func(*message.Message) (err error) {
		if times > 0 {
			err = errDown
		}
		times--
		return err
	}
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
	schedule := backoff.Schedule{time.Second, 5 * time.Second}
	timeout := list{wmmiddleware.Timeout(time.Minute)}
	checks := twice
	checks.ShouldRetry = func(p wmmiddleware.RetryParams) bool { return !backoff.IsPermanent(p.Err) }
	delays := &wmmiddleware.DelayOnError{InitialInterval: 2 * time.Second, MaxInterval: time.Hour, Multiplier: 3}
	ignore := wmmiddleware.NewIgnoreErrors([]error{errDown})
	first := wmmiddleware.NewCircuitBreaker(gobreaker.Settings{ReadyToTrip: func(gobreaker.Counts) bool { return true }})
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
		"IgnoreErrors inside":  {fails(1), nil, list{ignore.Middleware}, "processed", 1, nil},
		"IgnoreErrors outside": {fails(1), list{ignore.Middleware}, nil, "retried, recovered", 2, nil},
		// It sees no failure, and never opens. Inside, TestOpenCircuitBreakerInsidePauses.
		"CircuitBreaker outside": {fails(2), list{first.Middleware}, nil, "retried, retried, recovered", 3, nil},
	} {
		bubble(t, name, func(t *testing.T) {
			kit, calls := retrytest.New(t, schedule), 0
			subscriber, err := kit.Subscriber("billing")
			require.NoError(t, err)
			kit.Router.AddConsumerHandler("billing", "orders", subscriber, func(msg *message.Message) error {
				calls++
				return row.handler(msg)
			}).AddMiddleware(slices.Concat(row.outside, list{kit.Middleware}, row.inside)...)
			story := kit.Send("orders", message.NewMessage("order-1", []byte("order 1")))
			var outcomes []string
			for _, attempt := range story.Attempts() {
				outcomes = append(outcomes, string(attempt.Outcome))
			}
			assert.Equal(t, row.want, strings.Join(outcomes, ", "))
			assert.Equal(t, row.calls, calls)
			waits := row.waits
			if waits == nil {
				waits = schedule[:strings.Count(row.want, "retried")]
			}
			if len(waits) > 0 {
				story.Waited(waits...)
			}
		})
	}
}

func panics(*message.Message) error { panic("boom") }

func TestDeduplicationKey(t *testing.T) {
	keyOf := func(hasher wmmiddleware.MessageHasher, change func(*message.Message)) string {
		msg := messageOf(routed)
		change(msg)
		key, err := middleware.DeduplicationKey(hasher)(msg)
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
	for name, row := range map[string]struct {
		record retry.Record
		ctx    context.Context
	}{
		"the next try":    {retry.Record{Failures: 1, Topic: topic}, routed},
		"after a snooze":  {retry.Record{Snoozes: 1, Topic: topic}, routed},
		"another handler": {retry.Record{}, msgctx.WithOrigin(routed, topic, "mail")},
	} {
		assert.NotEqual(t, first, keyOf(nil, func(m *message.Message) {
			row.record.Write(m.Metadata)
			m.SetContext(row.ctx)
		}), name)
	}
	assert.Equal(t, first, keyOf(nil, func(m *message.Message) {
		retry.Record{Failures: 1, Topic: "another topic"}.Write(m.Metadata)
	}), "the record of another topic does not count")
	_, err := middleware.DeduplicationKey(func(*message.Message) (string, error) { return "", errDown })(messageOf(context.Background()))
	require.ErrorIs(t, err, errDown)
}

// A message that is given back after its handler was called has the same key when it comes again: it is dropped, and lost.
func TestOrderDeduplicatorLosesWhatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tiered, sent := setup(t)
		ctx, cancel := context.WithCancel(context.Background())
		calls := 0
		handler := tiered.Middleware(deduplicator(t, middleware.DeduplicationKey(nil)).Middleware(func(*message.Message) ([]*message.Message, error) {
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
