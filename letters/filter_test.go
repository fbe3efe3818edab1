package letters_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

func TestFilter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	letter := &letters.Letter{
		ID: "order-1", Metadata: message.Metadata{"tenant": "acme", "empty": ""},
		Record: retry.Record{
			Reason: "no such order: 17", ErrorType: "*orders.Error", DeadReason: "permanent", Handler: "billing", Key: "7", LastFailedAt: now.Add(-time.Hour),
		},
	}
	var groups letters.Groups
	groups.Add(letter)
	cause := groups.Sorted()[0].ID()
	another := letters.Cause{ErrorType: "*orders.Error", Reason: "no money"}.ID()
	for name, c := range map[string]struct {
		filter letters.Filter
		want   bool
	}{
		"zero":                 {letters.Filter{}, true},
		"its id":               {letters.Filter{IDs: []string{"order-2", "order-1"}}, true},
		"other ids":            {letters.Filter{IDs: []string{"order-2", "order-11"}}, false},
		"a part of the reason": {letters.Filter{Reason: regexp.MustCompile(`order: \d+$`)}, true},
		"another reason":       {letters.Filter{Reason: regexp.MustCompile(`^order`)}, false},
		"error type":           {letters.Filter{ErrorType: "*orders.Error"}, true},
		"another error type":   {letters.Filter{ErrorType: "orders.Error"}, false},
		"dead reason":          {letters.Filter{DeadReason: "permanent"}, true},
		"another dead reason":  {letters.Filter{DeadReason: "exhausted"}, false},
		"handler":              {letters.Filter{Handler: "billing"}, true},
		"another handler":      {letters.Filter{Handler: "bill"}, false},
		"key":                  {letters.Filter{Metadata: map[string]string{"retry_key": "7"}}, true},
		"another key":          {letters.Filter{Metadata: map[string]string{"retry_key": "77"}}, false},
		"cause":                {letters.Filter{Cause: cause}, true},
		"another cause":        {letters.Filter{Cause: another}, false},
		"older":                {letters.Filter{OlderThan: time.Hour}, true},
		"not so old":           {letters.Filter{OlderThan: time.Hour + 1}, false},
		"newer":                {letters.Filter{NewerThan: time.Hour}, true},
		"not so new":           {letters.Filter{NewerThan: time.Hour - 1}, false},
		"between":              {letters.Filter{OlderThan: time.Minute, NewerThan: 2 * time.Hour}, true},
		"metadata":             {letters.Filter{Metadata: map[string]string{"tenant": "acme", "empty": ""}}, true},
		"other metadata":       {letters.Filter{Metadata: map[string]string{"tenant": "acme", "region": "eu"}}, false},
		"a missing value":      {letters.Filter{Metadata: map[string]string{"region": ""}}, false},
		"all": {letters.Filter{
			IDs: []string{"order-1"}, Reason: regexp.MustCompile("order"), ErrorType: "*orders.Error", DeadReason: "permanent", Handler: "billing",
			Cause: cause, OlderThan: time.Minute, NewerThan: 2 * time.Hour, Metadata: map[string]string{"tenant": "acme", "retry_key": "7"},
		}, true},
		"all but one": {letters.Filter{
			IDs: []string{"order-1"}, Reason: regexp.MustCompile("order"), ErrorType: "*orders.Error", DeadReason: "permanent", Handler: "payment",
		}, false},
	} {
		require.NoError(t, c.filter.Validate(), name)
		assert.Equal(t, c.want, c.filter.Match(letter, now), name)
	}
}

// Letters of a PoisonQueue have no time.
func TestALetterWithoutATimeIsNeitherOldNorNew(t *testing.T) {
	t.Parallel()
	letter, now := &letters.Letter{}, time.Now()
	assert.False(t, letters.Filter{OlderThan: time.Nanosecond}.Match(letter, now))
	assert.False(t, letters.Filter{NewerThan: 1000 * time.Hour}.Match(letter, now))

	letter.Record.LastFailedAt = now.Add(time.Hour) // the clock of another host is ahead
	assert.False(t, letters.Filter{OlderThan: time.Second}.Match(letter, now))
	assert.True(t, letters.Filter{NewerThan: time.Second}.Match(letter, now))
}

func TestFilterReportsAllFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, letters.Filter{}.Validate())
	require.NoError(t, letters.Filter{OlderThan: time.Minute, NewerThan: time.Hour}.Validate())
	err := letters.Filter{OlderThan: -time.Second, NewerThan: -time.Minute}.Validate()
	require.ErrorContains(t, err, "Filter.OlderThan is -1s: it must not be negative")
	require.ErrorContains(t, err, "Filter.NewerThan is -1m0s: it must not be negative")
	for _, id := range []string{"1", "8801ED07", "8801ed0", "8801ed077", "8801ed0g"} {
		require.ErrorContains(t, letters.Filter{Cause: id}.Validate(), "8 hex digits")
	}
	require.NoError(t, letters.Filter{Cause: "8801ed07"}.Validate())
	require.ErrorContains(t, letters.Filter{OlderThan: time.Hour, NewerThan: time.Hour}.Validate(), "they select no letter, because Filter.NewerThan must be the longer one")
}

func TestFresh(t *testing.T) {
	t.Parallel()
	dead := message.NewMessage("order-1", []byte("{}"))
	dead.Metadata = message.Metadata{"trace": "abc", letters.RedrivenKey: `{"times":1,"redrives":null}`, recordkey.Properties: "p"}
	retry.Record{
		Failures: 5, Snoozes: 1, Topic: "orders", Reason: "down", DeadReason: retry.DeadReasonExhausted, FirstFailedAt: time.Now(), DueAt: time.Now(),
		Remaining: time.Second, Handler: "billing", ErrorType: "*errors.errorString", Subscriber: "amqp",
	}.Write(dead.Metadata)
	count := len(dead.Metadata)

	fresh := letters.Fresh(dead)

	assert.Equal(t, message.Metadata{
		"trace": "abc", letters.RedrivenKey: `{"times":1,"redrives":null}`, recordkey.Properties: "p",
	}, fresh.Metadata)
	assert.Equal(t, "order-1", fresh.UUID)
	assert.Equal(t, "{}", string(fresh.Payload))
	assert.Len(t, dead.Metadata, count, "the letter is as before")
	_, retried := retry.ReadRecord(fresh.Metadata)
	assert.False(t, retried)
	assert.Empty(t, letters.Fresh(message.NewMessage("a", nil)).Metadata)
	for key := range fresh.Metadata {
		assert.False(t, strings.HasSuffix(key, "_poisoned"), key)
	}
}
