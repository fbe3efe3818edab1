package retrytest_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

var failedAt = time.Date(2026, time.May, 4, 12, 0, 0, 123e6, time.UTC)

// deadOrder is a letter with 3 failures of handler billing.
func deadOrder() *letters.Letter {
	return &letters.Letter{
		ID: "order-10", Queue: "orders.dead", Kind: letters.Library, Payload: []byte("\x00\xff"),
		Metadata: message.Metadata{"tenant": "acme\xff", "base64:": "a"},
		Headers:  map[string]any{"count": int32(7), "big": int64(1) << 60, "flag": true},
		Redriven: letters.Redriven{}.Add(letters.PastRedrive{By: "ann"}),
		Record: retry.Record{
			Failures: 3, FirstFailedAt: failedAt.Add(-time.Hour), LastFailedAt: failedAt, Reason: "order 10 has no amount",
			ErrorType: "*errors.errorString", Topic: "orders", Handler: "billing", DeadReason: retry.DeadReasonExhausted,
		},
	}
}

// fileOf writes the file of a letter, and returns its path.
func fileOf(t *testing.T, letter *letters.Letter) string {
	t.Helper()
	test, err := letter.GoTest(letters.GoTestConfig{Name: "billing"})
	require.NoError(t, err)
	folder := t.TempDir()
	require.NoError(t, test.Write(folder, false))
	return filepath.Join(folder, slices.Sorted(maps.Keys(test.Files))[1])
}

// replayed returns what a replay prints in a bubble.
func replayed(t *testing.T, file string, handler message.NoPublishHandlerFunc) (text string, fatal bool) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		text, fatal = failureOf(func(t testing.TB) { retrytest.Replay(t, file, handler) })
	})
	return text, fatal
}

// TestReplayIsTheLastCall: the handler gets what it got when it failed last.
func TestReplayIsTheLastCall(t *testing.T) {
	file := fileOf(t, deadOrder())
	calls := 0
	_, fatal := replayed(t, file, func(msg *message.Message) error {
		calls++
		assert.Equal(t, failedAt, time.Now().UTC())
		assert.Equal(t, "order-10", msg.UUID)
		assert.Equal(t, "\x00\xff", string(msg.Payload))
		record, _ := retry.ReadRecord(msg.Metadata)
		assert.Equal(t, 2, record.Failures)
		assert.Equal(t, failedAt.Add(-time.Hour), record.FirstFailedAt)
		assert.Empty(t, record.DeadReason)
		history, _ := letters.ReadRedriven(msg.Metadata)
		assert.Equal(t, "ann", history.Redrives[0].By)
		assert.Equal(t, "billing", message.HandlerNameFromCtx(msg.Context()))
		assert.Equal(t, "orders", message.SubscribeTopicFromCtx(msg.Context()))
		own := maps.Clone(msg.Metadata)
		for _, key := range append(retry.RecordKeys(), letters.RedrivenKey) {
			delete(own, key)
		}
		assert.Equal(t, message.Metadata{"tenant": "acme\xff", "base64:": "a", "count": "7", "big": "1152921504606846976", "flag": "true"}, own)
		return errors.New("down")
	})
	assert.False(t, fatal)
	assert.Equal(t, 1, calls)

	first := deadOrder()
	first.Record.Failures = 1
	_, _ = replayed(t, fileOf(t, first), func(msg *message.Message) error {
		_, found := retry.ReadRecord(msg.Metadata)
		assert.False(t, found, "the first call has no record")
		return nil
	})
}

// orderError is another type of error.
type orderError struct{ text string }

func (e orderError) Error() string { return e.text }

// TestReplayComparesTheErrors: the words say which error it is.
func TestReplayComparesTheErrors(t *testing.T) {
	still := "retrytest: handler %q still fails with %q (%s): that is the recorded error of letter \"order-10\"\n"
	for name, test := range map[string]struct {
		change  func(*letters.Letter)
		handler message.NoPublishHandlerFunc
		want    string
	}{
		"the bug is there": {nil, always(errors.New("order 10 has no amount")), fmt.Sprintf(still, "billing", "order 10 has no amount", "*errors.errorString")},
		"another number":   {nil, always(errors.New("order 11 has no amount")), "that is the recorded error"},
		"another text":     {nil, always(errors.New("no money\x1b[2J")), `fails with "no money\x1b[2J" (*errors.errorString): that is another error than the recorded one of letter "order-10"; the recorded error is "order 10 has no amount" (*errors.errorString)`},
		"another type":     {nil, always(orderError{"order 10 has no amount"}), "that is another error"},
		"gone":             {nil, always(nil), `retrytest: handler "billing" takes letter "order-10" without an error; the recorded error is gone: "order 10 has no amount" (*errors.errorString)` + "\n"},
		"a panic":          {nil, func(*message.Message) error { panic("boom") }, "replay_test.go"},
		"no text":          {func(l *letters.Letter) { l.Record.Reason = "" }, always(errors.New("any")), "that is the recorded error"},
		"PoisonQueue":      {func(l *letters.Letter) { l.Kind, l.Record.ErrorType = letters.Poison, "" }, always(orderError{"order 10 has no amount"}), "that is the recorded error"},
		"the broker": {func(l *letters.Letter) { l.Kind, l.Record.ErrorType = letters.Broker, "" }, always(errors.New("down")),
			`fails with "down" (*errors.errorString) for letter "order-10"; the letter has no error of a handler`},
		"the broker, no error": {func(l *letters.Letter) { l.Kind = letters.Broker }, always(nil), "without an error; the letter has no error of a handler"},
		"no record":            {func(l *letters.Letter) { l.Kind, l.Record = letters.Unknown, retry.Record{} }, always(errors.New("down")), `handler "handler" fails`},
		"settled by the handler": {nil, func(msg *message.Message) error {
			msg.Ack()
			return errors.New("order 10 has no amount")
		}, "fails with"},
		"an hour":      {nil, func(*message.Message) error { time.Sleep(time.Hour); return nil }, "the recorded error is gone"},
		"hostile type": {func(l *letters.Letter) { l.Record.ErrorType = "\x1b[2J" }, always(errors.New("down")), `(\x1b[2J)`},
	} {
		letter := deadOrder()
		if test.change != nil {
			test.change(letter)
		}
		text, fatal := replayed(t, fileOf(t, letter), test.handler)
		assert.False(t, fatal, name)
		assert.Contains(t, text, test.want, name)
	}
}

// TestReplayFails: only an error of the handler makes the test red.
func TestReplayFails(t *testing.T) {
	file := fileOf(t, deadOrder())
	synctest.Test(t, func(t *testing.T) {
		retrytest.Replay(t, file, func(msg *message.Message) ([]*message.Message, error) { return []*message.Message{msg.Copy()}, nil })
		retrytest.Replay(t, file, message.HandlerFunc(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
		retrytest.Replay(t, file, func(*message.Message) error { return nil })
		retrytest.Replay(t, file, always(nil))
	})
	began := time.Now()
	retrytest.Replay(t, file, func(*message.Message) error {
		assert.Less(t, time.Since(began), time.Hour, "outside of a bubble time is that of the host")
		return nil
	})
}

// TestReplayRefuses: a test that cannot run says why.
func TestReplayRefuses(t *testing.T) {
	unread := deadOrder()
	unread.Record.DeadReason = retry.DeadReasonUnmarshal
	far := deadOrder()
	far.Record.LastFailedAt = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)
	good := fileOf(t, deadOrder())
	line, err := os.ReadFile(good)
	require.NoError(t, err)
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "x.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	for want, test := range map[string]struct {
		file    string
		handler message.NoPublishHandlerFunc
	}{
		"no such file": {"testdata/none.json", always(nil)}, "is nil: put the handler": {good, nil},
		"it has no letter of an export": {write("?"), always(nil)}, "it must have one letter": {write(string(line) + string(line)), always(nil)},
		"because the app's marshaler could not read it": {fileOf(t, unread), always(nil)}, "it must be before 2200": {fileOf(t, far), always(nil)},
		"the rest is not base64": {write(strings.Replace(string(line), `{"S":"`, `{"S":"base64:?`, 1)), always(nil)},
	} {
		text, fatal := replayed(t, test.file, test.handler)
		assert.True(t, fatal, want)
		assert.Contains(t, text, want)
	}
}
