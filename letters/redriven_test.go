package letters_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// redrivenTimes returns the history of a message that was redriven so often.
func redrivenTimes(times int) letters.Redriven {
	var history letters.Redriven
	for i := range times {
		history = history.Add(letters.PastRedrive{Run: fmt.Sprint("run ", i), By: "me", At: time.Unix(int64(i), 999)})
	}
	return history
}

func TestRedrivenIsBounded(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(20)
	assert.Equal(t, 20, history.Times)
	require.Len(t, history.Redrives, 8)
	for i, redrive := range history.Redrives {
		assert.Equal(t, letters.PastRedrive{Run: fmt.Sprint("run ", 12+i), By: "me", At: time.Unix(int64(12+i), 0).UTC()}, redrive, "the newest are kept")
	}
	metadata := message.Metadata{"trace": "abc"}
	history.Write(metadata)
	read, found := letters.ReadRedriven(metadata)
	require.True(t, found)
	assert.Equal(t, history, read)

	long := strings.Repeat("é", 100)
	full := letters.PastRedrive{Run: long, By: long, Note: long, Reason: long, DeadReason: retry.DeadReason(long), Failures: 1, At: time.Unix(1, 0)}
	for i := range 20 {
		history = history.Add(full)
		require.LessOrEqual(t, len(history.String()), 1024)
		read, found = letters.ReadRedriven(message.Metadata{letters.RedrivenKey: history.String()})
		require.True(t, found)
		assert.Equal(t, 21+i, read.Times, "each redrive is counted")
		require.NotEmpty(t, read.Redrives)
		newest := read.Redrives[len(read.Redrives)-1]
		assert.Equal(t, strings.Repeat("é", 64), newest.Note, "whole characters, at most 128 bytes")
	}
	cut := letters.Redriven{}.Add(letters.PastRedrive{Note: "x" + long, Reason: "a\xffb"}).Redrives[0]
	assert.Equal(t, "x"+strings.Repeat("é", 63), cut.Note)
	assert.Equal(t, "ab", cut.Reason)
	assert.True(t, utf8.ValidString(history.String()))

	hostile := strings.Repeat("\x01", 200) // six bytes each as JSON
	history = letters.Redriven{}.Add(letters.PastRedrive{Run: hostile, By: hostile, Note: hostile, Again: true})
	assert.LessOrEqual(t, len(history.String()), 1024)
	read, found = letters.ReadRedriven(message.Metadata{letters.RedrivenKey: history.String()})
	assert.True(t, found)
	assert.Equal(t, 1, read.Times, "the count stays where nothing else fits")
}

// A redrive that asks for the handler stays known after those that do not, and that have no room for it.
func TestAgainIsTheLastOne(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(1)
	assert.Empty(t, history.Again)
	for _, want := range []string{"2@2026-11-22T08:32:20.007Z", "23@2026-11-22T08:32:20.007Z"} {
		failed := time.Date(2026, 11, 22, 9, 32, 20, 7_999_999, time.FixedZone("", 3600))
		history = history.Add(letters.PastRedrive{FailedAt: failed, Again: true})
		for range 20 {
			history = history.Add(letters.PastRedrive{Run: "other", Note: strings.Repeat("x", 128)})
		}
		read, found := letters.ReadRedriven(message.Metadata{letters.RedrivenKey: history.String()})
		require.True(t, found)
		assert.Equal(t, want, read.Again)
	}
}

// A letter that stays after its redrive, because the process was killed, is redriven once more as the same. The letter
// of a message that failed once more is another one.
func TestAgainIsAFactOfTheLetter(t *testing.T) {
	t.Parallel()
	failed := time.Unix(1e9, 0)
	again := func(before letters.Redriven, run string, failed time.Time) letters.Redriven {
		return before.Add(letters.PastRedrive{Run: run, At: time.Now(), FailedAt: failed, Again: true})
	}
	first := again(redrivenTimes(1), "1", failed)
	assert.Equal(t, first.Again, again(redrivenTimes(1), "2", failed).Again)
	assert.NotEqual(t, first.Again, again(first, "3", failed).Again, "an orphan keeps its record")
	assert.NotEqual(t, first.Again, again(redrivenTimes(1), "4", failed.Add(time.Second)).Again)
	unknown := again(letters.Redriven{}, "5", time.Time{})
	assert.NotEqual(t, unknown.Again, again(unknown, "6", time.Time{}).Again)
}

// A history is a value: code may keep the old one.
func TestAddKeepsTheHistoryBefore(t *testing.T) {
	t.Parallel()
	history := redrivenTimes(3)
	one, another := history.Add(letters.PastRedrive{Run: "one"}), history.Add(letters.PastRedrive{Run: "another"})
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
		_, found := letters.ReadRedriven(message.Metadata{letters.RedrivenKey: text})
		assert.False(t, found, text)
	}
	_, found := letters.ReadRedriven(nil)
	assert.False(t, found)
	history, found := letters.ReadRedriven(message.Metadata{letters.RedrivenKey: `{"times":7,"new field":1}`})
	assert.True(t, found, "of a newer version")
	assert.Equal(t, 8, history.Add(letters.PastRedrive{}).Times)
}

// A history of any text causes no panic, and the next one is bounded.
func FuzzRedriven(f *testing.F) {
	f.Add(redrivenTimes(9).String(), "me", int64(1))
	f.Add(`{"times":1073741824,"redrives":[{},null]}`, "\xff\x00", int64(-1<<62))
	for _, long := range []string{strings.Repeat("x", 1024), strings.Repeat("<", 1024), strings.Repeat("é", 512)} {
		f.Add(fmt.Sprintf(`{"times":1,"again":"%s"}`, long[:1000]), "\xff\x00", int64(1))
	}
	f.Fuzz(func(t *testing.T, text, by string, at int64) {
		history, _ := letters.ReadRedriven(message.Metadata{letters.RedrivenKey: text})
		next := history.Add(letters.PastRedrive{By: by, Note: by, At: time.Unix(at, 0)})
		require.LessOrEqual(t, len(next.String()), 1024)
		require.LessOrEqual(t, len(next.Redrives), 8)
		read, found := letters.ReadRedriven(message.Metadata{letters.RedrivenKey: next.String()})
		if next.Times <= 1<<30 {
			require.True(t, found)
			require.Equal(t, next.Times, read.Times)
		}
	})
}
