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
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// redrivenTimes returns the history of a message that was redriven so often.
func redrivenTimes(times int) retry.Redriven {
	var history retry.Redriven
	for i := range times {
		history = history.Add(retry.Redrive{Run: fmt.Sprint("run ", i), By: "me", At: time.Unix(int64(i), 999)})
	}
	return history
}

func TestRedrivenIsBounded(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(20)
	assert.Equal(t, 20, history.Times)
	require.Len(t, history.Redrives, 8)
	for i, redrive := range history.Redrives {
		assert.Equal(t, retry.Redrive{Run: fmt.Sprint("run ", 12+i), By: "me", At: time.Unix(int64(12+i), 0).UTC()}, redrive, "the newest are kept")
	}
	metadata := message.Metadata{"trace": "abc"}
	history.Write(metadata)
	read, found := retry.ReadRedriven(metadata)
	require.True(t, found)
	assert.Equal(t, history, read)

	long := strings.Repeat("é", 100)
	full := retry.Redrive{Run: long, By: long, Note: long, Reason: long, DeadReason: retry.DeadReason(long), Failures: 1, At: time.Unix(1, 0)}
	for i := range 20 {
		history = history.Add(full)
		require.LessOrEqual(t, len(history.String()), 1024)
		read, found = retry.ReadRedriven(message.Metadata{retry.RedrivenKey: history.String()})
		require.True(t, found)
		assert.Equal(t, 21+i, read.Times, "each redrive is counted")
		require.NotEmpty(t, read.Redrives)
		newest := read.Redrives[len(read.Redrives)-1]
		assert.Equal(t, strings.Repeat("é", 64), newest.Note, "whole characters, at most 128 bytes")
	}
	cut := retry.Redriven{}.Add(retry.Redrive{Note: "x" + long, Reason: "a\xffb"}).Redrives[0]
	assert.Equal(t, "x"+strings.Repeat("é", 63), cut.Note)
	assert.Equal(t, "ab", cut.Reason)
	assert.True(t, utf8.ValidString(history.String()))

	hostile := strings.Repeat("\x01", 200) // six bytes each as JSON
	history = retry.Redriven{}.Add(retry.Redrive{Run: hostile, By: hostile, Note: hostile})
	assert.LessOrEqual(t, len(history.String()), 1024)
	read, found = retry.ReadRedriven(message.Metadata{retry.RedrivenKey: history.String()})
	assert.True(t, found)
	assert.Equal(t, 1, read.Times, "the count stays where nothing else fits")
}

// A history is a value: code may keep the old one.
func TestAddKeepsTheHistoryBefore(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(3)
	one, another := history.Add(retry.Redrive{Run: "one"}), history.Add(retry.Redrive{Run: "another"})
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
		_, found := retry.ReadRedriven(message.Metadata{retry.RedrivenKey: text})
		assert.False(t, found, text)
	}
	_, found := retry.ReadRedriven(nil)
	assert.False(t, found)
	history, found := retry.ReadRedriven(message.Metadata{retry.RedrivenKey: `{"times":7,"new field":1}`})
	assert.True(t, found, "of a newer version")
	assert.Equal(t, 8, history.Add(retry.Redrive{}).Times)
}

// A redriven message has failed never before: all of its retries are left. It keeps its history, on its tiers and as a dead letter.
func TestARedrivenMessageCountsFromZero(t *testing.T) {
	t.Parallel()
	ctx := routerContext(t)
	tiered, sent := setup(t)
	history := redrivenTimes(2)
	msg := messageOf(ctx)
	history.Write(msg.Metadata)
	fail := tiered.Middleware(failing(errDown))
	for failures := 1; failures <= 5; failures++ {
		_, err := fail(msg)
		require.NoError(t, err)
		c := sent.copies[len(sent.copies)-1]
		record, found := retry.ReadRecord(c.msg.Metadata)
		require.True(t, found)
		assert.Equal(t, failures, record.Failures)
		assert.Equal(t, failures == 5, record.DeadReason == retry.DeadReasonExhausted, c.topic)
		read, found := retry.ReadRedriven(c.msg.Metadata)
		require.True(t, found)
		assert.Equal(t, history, read)
		msg = redelivered(ctx, c)
	}
	tiered, sent = setup(t)
	msg = messageOf(ctx)
	history.Write(msg.Metadata)
	_, err := tiered.Middleware(failing(backoff.Permanent(errDown)))(msg)
	require.NoError(t, err)
	assert.Equal(t, history.String(), sent.only(t).msg.Metadata[retry.RedrivenKey])
}

// What a handler produces is a message of its own, which was never redriven.
func TestTheHistoryNeverLeaks(t *testing.T) {
	t.Parallel()
	tiered, _ := setup(t)
	msg := messageOf(routerContext(t))
	redrivenTimes(2).Write(msg.Metadata)
	before := maps.Clone(msg.Metadata)
	shared := message.NewMessage("shared", nil)
	shared.Metadata = msg.Metadata

	produced, err := tiered.Middleware(func(msg *message.Message) ([]*message.Message, error) {
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
	tiered, _ := setup(t)
	produced := []*message.Message{message.NewMessage("new", nil)}
	h := tiered.Middleware(func(*message.Message) ([]*message.Message, error) { return produced, nil })
	ctx := routerContext(t)
	allocations := func(metadata message.Metadata) float64 {
		msg := messageOf(ctx)
		msg.Metadata = metadata
		return testing.AllocsPerRun(1000, func() { _, _ = h(msg) })
	}
	history := message.Metadata{}
	redrivenTimes(2).Write(history)
	require.Zero(t, allocations(message.Metadata{"trace": "abc"}))
	require.LessOrEqual(t, allocations(history), allocations(message.Metadata{recordkey.Properties: "p"}))
}

// A history of any text causes no panic, and the next one is bounded.
func FuzzRedriven(f *testing.F) {
	f.Add(redrivenTimes(9).String(), "me", int64(1))
	f.Add(`{"times":1073741824,"redrives":[{},null]}`, "\xff\x00", int64(-1<<62))
	f.Fuzz(func(t *testing.T, text, by string, at int64) {
		history, _ := retry.ReadRedriven(message.Metadata{retry.RedrivenKey: text})
		next := history.Add(retry.Redrive{By: by, Note: by, At: time.Unix(at, 0)})
		require.LessOrEqual(t, len(next.String()), 1024)
		require.LessOrEqual(t, len(next.Redrives), 8)
		read, found := retry.ReadRedriven(message.Metadata{retry.RedrivenKey: next.String()})
		if next.Times <= 1<<30 {
			require.True(t, found)
			require.Equal(t, next.Times, read.Times)
		}
	})
}
