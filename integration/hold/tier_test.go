package hold_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	short  = 200 * time.Millisecond
	middle = 500 * time.Millisecond
	long   = 2 * time.Second
)

var schedule = backoff.Schedule{short, middle, long}

// TestFullLongestTierIsReplacedByRoundsOnAShorterOne: the delay is waited in total.
func TestFullLongestTierIsReplacedByRoundsOnAShorterOne(t *testing.T) {
	t.Parallel()
	const messages = 20
	failed, processed := testapp.NewLedger(), testapp.NewLedger()
	a := start(t, plan{schedule: schedule, concurrency: 8, handle: func(msg *message.Message) error {
		if _, retried := retry.ReadRecord(msg.Metadata); !retried {
			failed.Add(msg.UUID)
			return backoff.RetryAfter(errDown, long)
		}
		processed.Add(msg.UUID)
		return nil
	}})
	a.fill(long)
	a.send(messages)
	testapp.Eventually(t, func() bool { return processed.Len() == messages }, "all messages are processed")
	a.done()
	for id, at := range processed.Times() {
		assert.GreaterOrEqual(t, at[0].Sub(failed.Times()[id][0]), broker.Least(long), "%s came early", id)
		assert.Len(t, at, 1)
	}
	parked := a.Events(retry.Parked)
	assert.Len(t, parked, 3*messages, "2s are four rounds of 500ms")
	for _, e := range append(parked, a.Events(retry.Retried)...) {
		assert.Equal(t, backoff.Tier(middle), e.Tier)
		assert.Equal(t, 1, e.Record.Failures)
	}
	assert.Empty(t, a.Events(retry.Held))
}

// TestAllTiersFull: the messages are dead letters, and the handler goes on.
func TestAllTiersFull(t *testing.T) {
	t.Parallel()
	const messages, failing = 100, 50
	processed := testapp.NewLedger()
	a := start(t, plan{schedule: schedule, concurrency: 8, handle: func(msg *message.Message) error {
		if msg.UUID < testapp.ID(failing) {
			return errDown
		}
		processed.Add(msg.UUID)
		return nil
	}})
	a.fill(short, middle, long)
	a.send(messages)
	processed.Wait(t, messages-failing, soon)
	reasons := a.letters(failing)
	a.done()
	want := map[string]string{}
	for i := range failing {
		want[testapp.ID(i)] = string(retry.DeadReasonNoTier)
	}
	assert.Equal(t, want, reasons)
	assert.Empty(t, processed.Twice())
	assert.Empty(t, a.Events(retry.Held))
}

// TestDeletedTierThatIsNotDeclaredAgain: VerifyOnly declares nothing, so that the tier is unroutable.
func TestDeletedTierThatIsNotDeclaredAgain(t *testing.T) {
	t.Parallel()
	const messages = 50
	processed := testapp.NewLedger()
	a := start(t, plan{
		schedule: schedule, concurrency: 8, change: func(b *config.Config) { b.VerifyOnly = true },
		handle: processed.HandleRetries,
	})
	testapp.Delete(t, a.TierQueue(a.queue, short))
	a.send(messages)
	processed.Wait(t, messages, soon)
	a.done()
	assert.Empty(t, processed.Twice())
	for _, e := range a.Events(retry.Retried) {
		assert.Equal(t, backoff.Tier(middle), e.Tier)
	}
	assert.Empty(t, a.Events(retry.Held))
}
