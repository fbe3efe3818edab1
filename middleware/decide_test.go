package middleware

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

func TestDecideReturnsTheOutcomeAndTheRecordOfTheCopy(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	earlier := now.Add(-time.Hour)
	from := origin{topic: "orders", handler: "billing", subscriber: "amqp.Subscriber"}
	schedule := backoff.Schedule{time.Second, time.Minute}
	p := policy{schedule: schedule, tiers: schedule.Tiers(), tolerance: 100 * time.Millisecond}
	errDown := errors.New("the bank is down")
	because := func(err error) failure { return failure{err: err, reason: err.Error(), errorType: "T"} }
	// failed returns the record of a message with that many failures. The first was an hour ago.
	failed := func(times int) Record {
		return Record{Failures: times, FirstFailedAt: earlier, LastFailedAt: earlier, DueAt: earlier, Topic: "orders", Handler: "billing"}
	}
	// copied returns the failure record of the copy.
	copied := func(times int, reason string, due time.Time, dead DeadReason) Record {
		r := Record{Failures: times, FirstFailedAt: earlier, LastFailedAt: now, DueAt: due, Reason: reason, ErrorType: "T", Topic: "orders", Handler: "billing", DeadReason: dead}
		if times == 1 {
			r.FirstFailedAt = now
		}
		if dead != "" {
			r.Subscriber = "amqp.Subscriber"
		}
		return r
	}
	notDue := failed(1)
	notDue.DueAt = now.Add(time.Second)
	nearlyDue := failed(1)
	nearlyDue.DueAt = now.Add(100 * time.Millisecond)

	tooLargeCopy := failed(1)
	tooLargeCopy.DueAt, tooLargeCopy.DeadReason, tooLargeCopy.Subscriber = time.Time{}, DeadReasonTooLarge, "amqp.Subscriber"

	for name, row := range map[string]struct {
		s    situation
		f    failure
		want decision
	}{
		"arrives":                               {situation{}, failure{}, decision{}},
		"arrives, due":                          {situation{record: failed(1)}, failure{}, decision{}},
		"arrives, within tolerance":             {situation{record: nearlyDue}, failure{}, decision{}},
		"arrives, not due":                      {situation{record: notDue}, failure{}, decision{outcome: Parked, record: notDue, tier: backoff.Tier(time.Second), delay: time.Second}},
		"arrives, not due, shutdown":            {situation{record: notDue, ended: true}, failure{}, decision{outcome: GivenBack}},
		"arrives, shutdown":                     {situation{ended: true}, failure{}, decision{outcome: GivenBack}},
		"arrives, cannot be unmarshaled":        {situation{}, because(errUnmarshal("no JSON")), decision{outcome: DeadLettered, record: copied(1, "cannot unmarshal the message: no JSON", time.Time{}, DeadReasonUnmarshal)}},
		"succeeds":                              {situation{called: true}, failure{}, decision{outcome: Processed}},
		"succeeds, shutdown":                    {situation{called: true, ended: true}, failure{}, decision{outcome: Processed}},
		"succeeds, acked by the handler":        {situation{called: true, settled: true}, failure{}, decision{outcome: Processed}},
		"fails":                                 {situation{called: true}, because(errDown), decision{outcome: Retried, record: copied(1, errDown.Error(), now.Add(time.Second), ""), tier: backoff.Tier(time.Second), delay: time.Second}},
		"fails a second time":                   {situation{called: true, record: failed(1)}, because(errDown), decision{outcome: Retried, record: copied(2, errDown.Error(), now.Add(time.Minute), ""), tier: backoff.Tier(time.Minute), delay: time.Minute}},
		"fails, no retries left":                {situation{called: true, record: failed(2)}, because(errDown), decision{outcome: DeadLettered, record: copied(3, errDown.Error(), time.Time{}, DeadReasonExhausted)}},
		"fails, permanent":                      {situation{called: true}, because(backoff.Permanent(errDown)), decision{outcome: DeadLettered, record: copied(1, errDown.Error(), time.Time{}, DeadReasonPermanent)}},
		"requests a delay":                      {situation{called: true}, because(backoff.RetryAfter(errDown, 2*time.Second)), decision{outcome: Retried, record: copied(1, errDown.Error(), now.Add(2*time.Second), ""), tier: backoff.Tier(time.Minute), delay: 2 * time.Second}},
		"requests more than MaxDelay":           {situation{called: true}, because(backoff.RetryAfter(errDown, 2*backoff.MaxDelay)), decision{outcome: Retried, record: copied(1, errDown.Error(), now.Add(backoff.MaxDelay), ""), tier: backoff.Tier(time.Minute), delay: backoff.MaxDelay}},
		"requests a delay, no retries left":     {situation{called: true, record: failed(2)}, because(backoff.RetryAfter(errDown, time.Second)), decision{outcome: DeadLettered, record: copied(3, errDown.Error(), time.Time{}, DeadReasonExhausted)}},
		"fails, shutdown":                       {situation{called: true, ended: true}, because(errDown), decision{outcome: GivenBack}},
		"fails, acked by the handler":           {situation{called: true, settled: true}, because(errDown), decision{outcome: Settled}},
		"fails, acked by the handler, shutdown": {situation{called: true, settled: true, ended: true}, because(errDown), decision{outcome: Settled}},
		"fails, too large for a tier":           {situation{called: true, refused: tooLarge}, because(errDown), decision{outcome: DeadLettered, record: copied(1, errDown.Error(), time.Time{}, DeadReasonTooLarge)}},
		"fails, no retries left, too large":     {situation{called: true, record: failed(2), refused: tooLarge}, because(errDown), decision{outcome: DeadLettered, record: copied(3, errDown.Error(), time.Time{}, DeadReasonExhausted)}},
		"fails, cannot be published":            {situation{called: true, refused: unpublished}, because(errDown), decision{outcome: GivenBack}},
		"not due, too large for a tier":         {situation{record: notDue, refused: tooLarge}, failure{}, decision{outcome: DeadLettered, record: tooLargeCopy}},
		"not due, cannot be published":          {situation{record: notDue, refused: unpublished}, failure{}, decision{outcome: GivenBack}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.s.origin = from
			assert.Equal(t, row.want, p.decide(&row.s, &row.f, now))
		})
	}
}

// The tables in docs/outcomes.md and in doc.go list the outcomes in the order of Outcomes.
func TestDocumentsHaveTheOutcomes(t *testing.T) {
	t.Parallel()
	const markdownRow = "(?m)^\\| `([a-z -]+)` \\|"
	for document, row := range map[string]string{
		"../README.md": markdownRow, "../docs/outcomes.md": markdownRow,
		"doc.go": `(?m)^//\t([a-z-]+(?: [a-z]+)?)  `,
	} {
		text, err := os.ReadFile(document)
		require.NoError(t, err)
		table := string(text)
		if _, after, found := strings.Cut(table, "\n## Outcomes\n"); found {
			table, _, _ = strings.Cut(after, "\n## ")
		}
		var got []Outcome
		for _, match := range regexp.MustCompile(row).FindAllStringSubmatch(table, -1) {
			if match[1] != "outcome" {
				got = append(got, Outcome(match[1]))
			}
		}
		assert.Equal(t, Outcomes(), got, document)
	}
}

// The table of dead reasons in docs/outcomes.md begins with those of the middleware.
func TestDocumentsHaveTheDeadReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/outcomes.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n## Dead reasons\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n## ")
	var got []DeadReason
	for _, match := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\|").FindAllStringSubmatch(table, 4) {
		got = append(got, DeadReason(match[1]))
	}
	assert.Equal(t, []DeadReason{DeadReasonExhausted, DeadReasonPermanent, DeadReasonUnmarshal, DeadReasonTooLarge}, got)
}
