package middleware_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

func recorded(failures int) message.Metadata {
	return message.Metadata{
		recordkey.Failures:      strconv.Itoa(failures),
		recordkey.FirstFailedAt: "2026-01-01T00:00:00.000Z",
		recordkey.LastFailedAt:  "2026-01-01T00:00:01.000Z",
		recordkey.DueAt:         "2026-01-01T00:00:02.000Z",
		recordkey.Topic:         topic,
	}
}

func TestInvalidRecordIsIgnored(t *testing.T) {
	farAhead := time.Now().Add(backoff.MaxDelay + time.Hour).UTC().Format("2006-01-02T15:04:05.000Z")
	for key, values := range map[string][]string{
		// one more than the largest would be negative, and 2001 is more than any schedule can count
		recordkey.Failures:       {"-1", "9223372036854775807", "9223372036854775808", "NaN", "2001"},
		recordkey.Snoozes:        {"-1"},
		recordkey.FirstArrivedAt: {"yesterday"},
		recordkey.Remaining:      {"-1s", "87600h0m0.001s", "2540400h", "NaN"}, // more than MaxDelay, and an overflow
		recordkey.FirstFailedAt:  {"yesterday"},
		recordkey.LastFailedAt:   {"9999-01-01T00:00:00.000Z"},
		recordkey.DueAt:          {"9999-12-31T23:59:59.999Z", "\xff", farAhead},
		recordkey.Topic:          {"another topic"},
	} {
		for _, value := range values {
			t.Run(key+"="+value, func(t *testing.T) {
				tiered, sent := setup(t)
				msg := messageOf(routed)
				maps.Copy(msg.Metadata, recorded(3))
				msg.Metadata[key] = value
				_, readable := retry.ReadRecord(msg.Metadata)
				assert.Equal(t, key == recordkey.Topic, readable)
				handles(t, tiered.Middleware(failing(errDown)), msg)
				assert.Equal(t, "1", sent.only(t).msg.Metadata[recordkey.Failures])
				assert.Equal(t, "1s.orders", sent.only(t).topic)
			})
		}
	}
	t.Run("no failures", func(t *testing.T) { // as of a message that was snoozed
		tiered, sent := setup(t)
		msg := messageOf(routed)
		maps.Copy(msg.Metadata, recorded(0))
		msg.Metadata[recordkey.Snoozes] = "2"
		handles(t, tiered.Middleware(failing(errDown)), msg)
		record := sent.record(t)
		assert.Equal(t, []any{1, 2, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)},
			[]any{record.Failures, record.Snoozes, record.FirstFailedAt})
	})
}

// What a handler produces is a message of its own, which has never failed and was never redriven. It has the delay that
// the handler has set.
func TestOnlyTheRecordIsRemovedFromProducedMessages(t *testing.T) {
	tiered, _ := setup(t)
	in := messageOf(routed)
	maps.Copy(in.Metadata, recorded(1))
	in.Metadata[recordkey.Properties] = "typed headers"
	delay.Message(in, delay.For(time.Second))
	redrivenTwice().Write(in.Metadata)
	before, received := maps.Clone(in.Metadata), in.Metadata
	shared := message.NewMessage("shared", nil)
	shared.Metadata = in.Metadata
	produced, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		delayed := msg.Copy()
		delay.Message(delayed, delay.For(time.Hour))
		return []*message.Message{msg, msg.Copy(), shared, message.NewMessage("clean", nil), delayed}, nil
	})(in)
	require.NoError(t, err)
	require.Len(t, produced, 5)
	for _, msg := range produced[:3] {
		assert.Equal(t, message.Metadata{"trace": "abc"}, msg.Metadata)
	}
	assert.Empty(t, produced[3].Metadata)
	assert.Equal(t, "1h0m0s", produced[4].Metadata[delay.DelayedForKey])
	assert.Contains(t, produced[4].Metadata, delay.DelayedUntilKey)
	assert.Equal(t, before, received, "the map of the received message is not changed")
}

func FuzzReadRecord(f *testing.F) {
	f.Add("1", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z", "1", "1.5s")
	f.Add("-1", "", "0000-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "-1", "-1s")
	f.Add("9223372036854775807", "", "", "", "9223372036854775807", "87600h0m0.001s")
	f.Add("9223372036854775808", "NaN", "\xff", "2026-01-01T00:00:00.000+99:99", "NaN", "NaN")
	f.Fuzz(func(t *testing.T, failures, first, last, due, snoozes, remaining string) {
		record, ok := retry.ReadRecord(message.Metadata{
			recordkey.Failures: failures, recordkey.FirstFailedAt: first, recordkey.LastFailedAt: last, recordkey.DueAt: due,
			recordkey.Snoozes: snoozes, recordkey.Remaining: remaining,
		})
		if !ok {
			return
		}
		if record.Failures < 0 || record.Failures+1 < 1 || time.Until(record.DueAt) > backoff.MaxDelay ||
			record.Snoozes < 0 || record.Snoozes+1 < 1 || record.Remaining < 0 || record.Remaining > backoff.MaxDelay {
			t.Errorf("out of bounds: %+v", record)
		}
	})
}

func TestReadRecordReadsEveryFieldThatWriteWrites(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	waits := retry.Record{
		Failures: 2, FirstArrivedAt: at.Add(-time.Second), FirstFailedAt: at, LastFailedAt: at.Add(time.Second), DueAt: at.Add(time.Minute), Reason: "the bank is down",
		ErrorType: "*errors.errorString", Topic: topic, Handler: handler, Snoozes: 3, Remaining: 61500 * time.Millisecond,
	}
	dead := waits
	dead.Remaining, dead.DueAt, dead.DeadReason, dead.Subscriber = 0, time.Time{}, retry.DeadReasonExhausted, "amqp.Subscriber"
	for _, record := range []retry.Record{waits, dead} {
		metadata := message.Metadata{recordkey.DeadReason: "old", recordkey.Handler: "old", recordkey.UnmarshalError: "old"}
		record.Write(metadata)
		got, ok := retry.ReadRecord(metadata)
		require.True(t, ok)
		assert.Equal(t, record, got)
		assert.Subset(t, retry.RecordKeys(), slices.Collect(maps.Keys(metadata)))
	}
	assert.Equal(t, []string{recordkey.DeadReason, recordkey.Failures, recordkey.Topic}, retry.RecordKeys()[:3], "most important first")
}

func TestRecordPrintsOnlyTheFieldsThatAreSet(t *testing.T) {
	record := retry.Record{Failures: 1, Reason: "the bank is down", LastFailedAt: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	assert.Equal(t, `failures=1 last_failed_at="2026-01-01T12:00:00.000Z" reason="the bank is down"`, record.String())
}

func TestTimesAreFormattedAsTheLayout(t *testing.T) {
	zone := time.FixedZone("", 5*3600+1800)
	for _, at := range []time.Time{
		time.Date(2026, 11, 21, 9, 8, 7, 6_999_999, time.UTC), time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Date(2026, 1, 1, 1, 0, 0, 0, zone), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(0, 2, 29, 12, 30, 45, 123_000_000, time.UTC), time.Now(),
	} {
		metadata := message.Metadata{}
		retry.Record{Failures: 1, LastFailedAt: at}.Write(metadata)
		assert.Equal(t, at.UTC().Format("2006-01-02T15:04:05.000Z07:00"), metadata[recordkey.LastFailedAt])
	}
}

// sourceOf returns the source of a connection.
func sourceOf(name string) *backend.Source {
	return &backend.Source{Owner: name, Name: "the connection of " + name, Subscribe: "use its Subscriber"}
}

// builder is the source of a builder.
func builder(token string) *backend.Source {
	return &backend.Source{Token: token, Name: "the builder of " + token, Subscribe: "use its SubscriberConfig"}
}

func from(owner, queue string) func(*message.Message) {
	return func(msg *message.Message) {
		msg.SetContext(msgctx.NewContext(msg.Context(), &msgctx.Subscription{Owner: owner, Queue: queue}))
	}
}

func marked(token string) func(*message.Message) {
	return func(msg *message.Message) { msg.Metadata[msgctx.BuilderKey] = token }
}

func TestCopiesGoToTheQueueOfTheMessage(t *testing.T) {
	for name, row := range map[string]struct {
		queue string
		err   error
		want  string
	}{
		"by its topic":           {"", errDown, "1s.orders"},
		"by its queue":           {"orders_email", errDown, "1s.orders_email"},
		"by its queue, given up": {"orders_email", backoff.Permanent(errDown), "dead.orders_email"},
	} {
		t.Run(name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) {
				c.Source = sourceOf("email")
				destination := c.Destination
				c.Destination = func(c backend.Copy) (backend.Destination, error) {
					c.Topic = cmp.Or(c.Queue, c.Topic)
					return destination(c)
				}
			})
			msg := messageOf(routed)
			from("email", row.queue)(msg)
			handles(t, tiered.Middleware(failing(row.err)), msg)
			assert.Equal(t, row.want, sent.only(t).topic)
		})
	}
}

// TestTokenIsTakenOut: neither the handler, nor what it produces, nor a copy has it. An inbox finds the work queue, which
// the subscriber of a builder does not name. A middleware outside may hand the message in again.
func TestTokenIsTakenOut(t *testing.T) {
	for _, fault := range []error{nil, errDown} {
		tiered, sent := setup(t, func(c *settings) {
			c.Source = builder("email")
			c.Source.QueueName = func(topic string) string { return topic + "_email" }
		})
		msg := messageOf(routed)
		assert.Empty(t, msgctx.QueueOf(msg))
		marked("email")(msg)
		all, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			assert.NotContains(t, msg.Metadata, msgctx.BuilderKey)
			assert.Equal(t, "orders_email", msgctx.QueueOf(msg))
			return []*message.Message{msg.Copy()}, fault
		})(msg)
		require.NoError(t, err)
		if fault != nil {
			assert.Equal(t, "1s.orders", sent.only(t).topic, "by its topic")
			all = []*message.Message{sent.only(t).msg}
		}
		require.Len(t, all, 1)
		assert.NotContains(t, all[0].Metadata, msgctx.BuilderKey)
	}
	bubble(t, "again", func(t *testing.T) {
		tiered, sent := setup(t, func(c *settings) { c.Source, c.Policy.MaxHold = builder("email"), time.Second })
		sent.fail = always(errDown)
		calls := 0
		kept := message.Metadata{} // another goroutine may read it
		handler := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			calls++
			msg.Metadata = [...]message.Metadata{nil, kept, nil}[calls-1]
			return nil, errDown
		})
		msg := messageOf(routed)
		marked("email")(msg)
		for range 3 {
			_, err := handler(msg)
			require.Error(t, err)
		}
		assert.Equal(t, 3, calls)
		assert.Empty(t, kept, "a map is replaced, not written into")
	})
}

func TestWrongSourceIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		source *backend.Source
		mark   func(*message.Message)
	}{
		"no connection":           {sourceOf("email"), func(*message.Message) {}},
		"another connection":      {sourceOf("email"), from("analytics", "orders")},
		"a builder, no builder":   {builder("email"), func(*message.Message) {}},
		"another builder":         {builder("email"), marked("analytics")},
		"a builder, a connection": {builder("email"), from("email", "orders")},
		"a connection, a builder": {sourceOf("email"), marked("email")},
	} {
		bubble(t, name, func(t *testing.T) {
			tiered, sent := setup(t, func(c *settings) { c.Source, c.Policy.MaxHold = row.source, 2*time.Minute })
			for _, h := range []message.HandlerFunc{tiered.Middleware(notCalled(t)), tiered.Dispatch(notCalled(t))} {
				msg := messageOf(routed)
				row.mark(msg)
				begin := time.Now()
				_, err := h(msg)
				assert.Equal(t, 2*time.Minute, time.Since(begin), "it is held")
				want := fmt.Sprintf(`handler "billing" on topic "orders": its subscriber is not one of %s, so a copy of its `+
					"messages would not come back: %s", row.source.Name, row.source.Subscribe)
				require.EqualError(t, err, want)
				assert.Contains(t, sent.logs.String(), want)
			}
			assert.Empty(t, sent.copies, "nothing is published")
		})
	}
}

func TestSettledMessageIsNotRefused(t *testing.T) {
	tiered, sent := setup(t, func(c *settings) { c.Source = sourceOf("email") })
	msg := messageOf(routed)
	msg.Ack()
	_, err := tiered.Middleware(failing(errDown))(msg)
	require.ErrorIs(t, err, errDown)
	assert.Empty(t, sent.copies)
}

// Dispatch uses the retry of the message, once: Watermill keeps the middlewares of a handler by its name, also after it
// has stopped, and the one that is added again has both.
func TestAMessageIsRetriedOnceBehindAnotherRetryMiddleware(t *testing.T) {
	own, sent := setup(t, observing, func(c *settings) { c.Policy.Schedule = backoff.Schedule{time.Hour} })
	outside, unused := setup(t, observing)
	b := &msgctx.Subscription{Retry: own}
	handles(t, outside.Dispatch(outside.Dispatch(own.Dispatch(failing(errDown)))), messageOf(msgctx.NewContext(routed, b)))
	assert.Equal(t, "1h.orders", sent.only(t).topic)
	assert.Equal(t, []retry.Outcome{retry.Retried}, sent.outcomes())
	assert.Empty(t, unused.outcomes())
	assert.Empty(t, unused.copies)
	assert.True(t, b.Claimed())
}

// A search in logs, a letter and a page speak of the same thing.
func TestTheLogLineOfADeadLetterHasTheIDOfItsCause(t *testing.T) {
	seen := map[string]string{}
	for name, handler := range map[string]message.HandlerFunc{
		"error":          failing(fmt.Errorf("order %s is unknown", "uuid-1")),
		"another error":  failing(errors.New("no money")),
		"a panic":        func(*message.Message) ([]*message.Message, error) { panic(1) },
		"another's type": failing(&os.PathError{Op: "a", Path: "b", Err: syscall.ENOENT}),
	} {
		tiered, sent := setup(t)
		last := messageOf(routed)
		maps.Copy(last.Metadata, recorded(4))
		handles(t, tiered.Middleware(handler), last)
		id := (&letters.Letter{Record: sent.record(t)}).Cause().ID()
		assert.Equal(t, 1, sent.logs.lines("Message dead-lettered"), name)
		assert.Equal(t, 1, sent.logs.lines("cause:"+id), name)
		assert.Regexp(t, "^[0-9a-f]{8}$", id)
		assert.Empty(t, seen[id], name)
		seen[id] = name
	}
}
