package retry_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/retry"
)

func TestWhatOutcomesHaveInCommon(t *testing.T) {
	for outcome, want := range map[retry.Outcome][2]bool{
		retry.Retried: {true, false}, retry.Snoozed: {true, false}, retry.Parked: {true, false},
		retry.DeadLettered: {false, true}, retry.Blocked: {false, true},
		retry.Processed: {}, retry.Recovered: {}, retry.Duplicate: {}, retry.Discarded: {}, retry.Held: {},
		retry.GivenBack: {}, retry.Settled: {}, "": {},
	} {
		assert.Equal(t, want, [2]bool{outcome.Waits(), outcome.GivenUp()}, outcome)
	}
}
