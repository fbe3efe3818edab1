package orders

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestRequestedDelayIsLongerThanAnyTier(t *testing.T) {
	p := newProvider(backoff.Schedule{time.Second, time.Minute, time.Second})
	requested, ok := backoff.RetryAfterDelay(p.charge(order{Number: 13}))
	assert.True(t, ok)
	assert.Equal(t, time.Minute+time.Second, requested)
}

func TestInvalidOrdersAreDeadLettered(t *testing.T) {
	p := newProvider(backoff.Schedule{time.Second})
	assert.True(t, backoff.IsPermanent(p.bill(message.NewMessage("", []byte("{")))))
	assert.True(t, backoff.IsPermanent(p.charge(order{Number: 0})))
	assert.True(t, backoff.IsPermanent(p.charge(order{Number: howMany + 1})))
}

func TestSummaryCountsByIdentity(t *testing.T) {
	for _, test := range []struct {
		name         string
		billed, dead map[string]int
		want         summary
		complete     bool
	}{
		{
			"all settled", map[string]int{"a": 1, "b": 1}, map[string]int{"c": 1},
			summary{published: 3, processed: 2, dead: 1}, true,
		},
		{"nothing settled", nil, nil, summary{published: 3, lost: 3}, false},
		{
			"one lost and one billed twice", map[string]int{"a": 2}, map[string]int{"c": 1},
			summary{published: 3, processed: 1, dead: 1, lost: 1, duplicates: 1}, false,
		},
		{
			"billed twice", map[string]int{"a": 3, "b": 1}, map[string]int{"c": 1},
			summary{published: 3, processed: 2, dead: 1, duplicates: 2}, true,
		},
		{
			"billed and dead", map[string]int{"a": 1, "b": 1}, map[string]int{"a": 1, "c": 1},
			summary{published: 3, processed: 2, dead: 2, duplicates: 1}, false,
		},
		{
			"unknown orders", map[string]int{"a": 1, "b": 1, "x": 1}, map[string]int{"c": 1, "": 1},
			summary{published: 3, processed: 2, dead: 1, duplicates: 2}, true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := newJournal([]*message.Message{{UUID: "a"}, {UUID: "b"}, {UUID: "c"}}, io.Discard)
			j.billed, j.dead = test.billed, test.dead
			assert.Equal(t, test.want, j.summary())
			assert.Equal(t, test.complete, j.report("orders") == nil)
		})
	}
}

func TestRow(t *testing.T) {
	msg := message.NewMessage("a", nil)
	var out bytes.Buffer
	j := newJournal([]*message.Message{msg}, &out)
	failed := time.Now()
	record := retry.Record{
		Failures: 1, LastFailedAt: failed, DueAt: failed.Add(900 * time.Millisecond), Reason: "no answer",
	}
	j.back("a", record, failed.Add(time.Second))
	assert.Equal(t, "    1        1     900ms        1s  no answer\n", out.String())
	assert.Equal(t, 100*time.Millisecond, j.late)

	require.Error(t, j.watch(func(*message.Message) error { return errors.New("no") })(msg))
	assert.Equal(t, 1, j.open(), "a failed order is not settled")
	require.NoError(t, j.watch(func(*message.Message) error { return nil })(msg))
	assert.Zero(t, j.open())
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"-schedule", ""},
		{"-schedule", "1s 5"},
		{"-nothing"},
		{"-backend", "kafka"},
		{"amqp://guest:secret@localhost"},
	} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			assert.Equal(t, exitUsage, Main(args, &stdout, &stderr, Choice{Name: "memory"}, Choice{Name: "redis"}))
			assert.Empty(t, stdout.String())
			assert.Regexp(t, `^example: .+\n$`, stderr.String())
			assert.NotContains(t, stderr.String(), "sec")
		})
	}
}
