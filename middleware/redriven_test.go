package middleware_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

// redrivenTimes returns the history of a message that was redriven so often.
func redrivenTimes(times int) retrymw.Redriven {
	var history retrymw.Redriven
	for i := range times {
		history = history.Add(retrymw.Redrive{Run: fmt.Sprint("run ", i), By: "me", At: time.Unix(int64(i), 999)})
	}
	return history
}

func TestRedrivenIsBounded(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(20)
	assert.Equal(t, 20, history.Times)
	require.Len(t, history.Redrives, 8)
	for i, redrive := range history.Redrives {
		assert.Equal(t, retrymw.Redrive{Run: fmt.Sprint("run ", 12+i), By: "me", At: time.Unix(int64(12+i), 0).UTC()}, redrive, "the newest are kept")
	}
	metadata := message.Metadata{"trace": "abc"}
	history.Write(metadata)
	read, found := retrymw.ReadRedriven(metadata)
	require.True(t, found)
	assert.Equal(t, history, read)

	long := strings.Repeat("é", 100)
	full := retrymw.Redrive{Run: long, By: long, Note: long, Reason: long, DeadReason: retrymw.DeadReason(long), Failures: 1, At: time.Unix(1, 0)}
	for i := range 20 {
		history = history.Add(full)
		require.LessOrEqual(t, len(history.String()), 1024)
		read, found = retrymw.ReadRedriven(message.Metadata{retrymw.RedrivenKey: history.String()})
		require.True(t, found)
		assert.Equal(t, 21+i, read.Times, "each redrive is counted")
		require.NotEmpty(t, read.Redrives)
		newest := read.Redrives[len(read.Redrives)-1]
		assert.Equal(t, strings.Repeat("é", 64), newest.Note, "whole characters, at most 128 bytes")
	}
	cut := retrymw.Redriven{}.Add(retrymw.Redrive{Note: "x" + long, Reason: "a\xffb"}).Redrives[0]
	assert.Equal(t, "x"+strings.Repeat("é", 63), cut.Note)
	assert.Equal(t, "ab", cut.Reason)
	assert.True(t, utf8.ValidString(history.String()))

	hostile := strings.Repeat("\x01", 200) // six bytes each as JSON
	history = retrymw.Redriven{}.Add(retrymw.Redrive{Run: hostile, By: hostile, Note: hostile})
	assert.LessOrEqual(t, len(history.String()), 1024)
	read, found = retrymw.ReadRedriven(message.Metadata{retrymw.RedrivenKey: history.String()})
	assert.True(t, found)
	assert.Equal(t, 1, read.Times, "the count stays where nothing else fits")
}

// A history is a value: code may keep the old one.
func TestAddKeepsTheHistoryBefore(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(3)
	one, another := history.Add(retrymw.Redrive{Run: "one"}), history.Add(retrymw.Redrive{Run: "another"})
	assert.Len(t, history.Redrives, 3)
	assert.Equal(t, "one", one.Redrives[3].Run)
	assert.Equal(t, "another", another.Redrives[3].Run)
	_ = history.String()
	assert.Len(t, history.Redrives, 3)
}

func TestGarbledHistories(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "1", "null", "[]", "{}", `{"times":0}`, `{"times":-1}`, `{"times":1.5}`, `{"times":"1"}`, `{"times":9223372036854775808}`,
		`{"times":2147483647}`, `{"times":1,"redrives":[{"at":"soon"}]}`, `{"times":1}}`, strings.Repeat(" ", 1024) + `{"times":1}`, "\xff",
	} {
		_, found := retrymw.ReadRedriven(message.Metadata{retrymw.RedrivenKey: text})
		assert.False(t, found, text)
	}
	_, found := retrymw.ReadRedriven(nil)
	assert.False(t, found)
	history, found := retrymw.ReadRedriven(message.Metadata{retrymw.RedrivenKey: `{"times":7,"new field":1}`})
	assert.True(t, found, "of a newer version")
	assert.Equal(t, 8, history.Add(retrymw.Redrive{}).Times)
}

// A redriven message has failed never before: all of its retries are left. It keeps its history, on its tiers and as a dead letter.
func TestARedrivenMessageCountsFromZero(t *testing.T) {
	t.Parallel()
	ctx := routerContext(t)
	retry, sent := setup(t)
	history := redrivenTimes(2)
	msg := messageOf(ctx)
	history.Write(msg.Metadata)
	fail := retry.Middleware(failing(errDown))
	for failures := 1; failures <= 5; failures++ {
		_, err := fail(msg)
		require.NoError(t, err)
		c := sent.copies[len(sent.copies)-1]
		record, found := retrymw.ReadRecord(c.msg.Metadata)
		require.True(t, found)
		assert.Equal(t, failures, record.Failures)
		assert.Equal(t, failures == 5, record.DeadReason == retrymw.DeadReasonExhausted, c.topic)
		read, found := retrymw.ReadRedriven(c.msg.Metadata)
		require.True(t, found)
		assert.Equal(t, history, read)
		msg = redelivered(ctx, c)
	}
	retry, sent = setup(t)
	msg = messageOf(ctx)
	history.Write(msg.Metadata)
	_, err := retry.Middleware(failing(backoff.Permanent(errDown)))(msg)
	require.NoError(t, err)
	assert.Equal(t, history.String(), sent.only(t).msg.Metadata[retrymw.RedrivenKey])
}

// What a handler produces is a message of its own, which was never redriven.
func TestTheHistoryNeverLeaks(t *testing.T) {
	t.Parallel()
	retry, _ := setup(t)
	msg := messageOf(routerContext(t))
	redrivenTimes(2).Write(msg.Metadata)
	before := maps.Clone(msg.Metadata)
	shared := message.NewMessage("shared", nil)
	shared.Metadata = msg.Metadata

	produced, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{msg.Copy(), shared, message.NewMessage("new", nil)}, nil
	})(msg)

	require.NoError(t, err)
	require.Len(t, produced, 3)
	assert.Equal(t, message.Metadata{"trace": "abc"}, produced[0].Metadata)
	assert.Equal(t, message.Metadata{"trace": "abc"}, produced[1].Metadata)
	assert.Empty(t, produced[2].Metadata)
	assert.Equal(t, before, msg.Metadata, "the handler's message is as before")
}

// The history costs a success no more than the properties that each message from an exchange of RabbitMQ has.
func TestTheHistoryAllocatesNoMore(t *testing.T) {
	retry, _ := setup(t)
	produced := []*message.Message{message.NewMessage("new", nil)}
	h := retry.Middleware(func(*message.Message) ([]*message.Message, error) { return produced, nil })
	ctx := routerContext(t)
	allocations := func(metadata message.Metadata) float64 {
		msg := messageOf(ctx)
		msg.Metadata = metadata
		return testing.AllocsPerRun(1000, func() { _, _ = h(msg) })
	}
	history := message.Metadata{}
	redrivenTimes(2).Write(history)
	require.Zero(t, allocations(message.Metadata{"trace": "abc"}))
	require.LessOrEqual(t, allocations(history), allocations(message.Metadata{retrymw.PropertiesKey: "p"}))
}

// A history of any text causes no panic, and the next one is bounded.
func FuzzRedriven(f *testing.F) {
	f.Add(redrivenTimes(9).String(), "me", int64(1))
	f.Add(`{"times":1073741824,"redrives":[{},null]}`, "\xff\x00", int64(-1<<62))
	f.Fuzz(func(t *testing.T, text, by string, at int64) {
		history, _ := retrymw.ReadRedriven(message.Metadata{retrymw.RedrivenKey: text})
		next := history.Add(retrymw.Redrive{By: by, Note: by, At: time.Unix(at, 0)})
		require.LessOrEqual(t, len(next.String()), 1024)
		require.LessOrEqual(t, len(next.Redrives), 8)
		read, found := retrymw.ReadRedriven(message.Metadata{retrymw.RedrivenKey: next.String()})
		if next.Times <= 1<<30 {
			require.True(t, found)
			require.Equal(t, next.Times, read.Times)
		}
	})
}
