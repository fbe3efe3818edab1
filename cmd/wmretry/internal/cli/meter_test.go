package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestTheProgressCountsTheSelection, as far as it is known: what is not looked at yet may be selected.
func TestTheProgressCountsTheSelection(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]struct {
		some    bool
		limit   int
		summary letters.Summary
	}{
		"196 of 620 sent":         {false, 0, letters.Summary{Total: 620, Done: 196, Unseen: 424}},
		"196 of at most 595 sent": {true, 0, letters.Summary{Total: 620, Done: 196, Other: 25, Unseen: 399}},
		"544 of 544 sent":         {true, 0, letters.Summary{Total: 620, Done: 544, Other: 76}},
		"3 of at most 10 sent":    {false, 10, letters.Summary{Total: 620, Done: 3, Unseen: 617}},
		"10 of at most 10 sent":   {true, 10, letters.Summary{Total: 620, Done: 10, Other: 4, Unseen: 606}},
	} {
		m := meter{verb: "sent", some: c.some, limit: c.limit}
		assert.Equal(t, want+" as a canary", m.message(letters.Progress{Summary: c.summary, Phase: letters.Canary}))
	}
	m, lost := meter{verb: "sent"}, letters.Progress{Phase: letters.Waiting, Err: errors.New("EOF")}
	assert.Equal(t, "0 sent; waits, and goes on when the broker is back: EOF", m.message(lost))
}

// TestWhatATierForwardsIsNotOverdue: a tier without a fault can have messages that are on their way.
func TestWhatATierForwardsIsNotOverdue(t *testing.T) {
	t.Parallel()
	for expired, want := range map[int]string{2: "2 due", 32: "32 due", 33: "33 overdue"} {
		e := &env{flags: flags{prefix: "retry"}}
		status := deadletter.Status{Queues: []deadletter.WorkQueue{{
			Name: "orders", Tiers: []deadletter.Tier{{Delay: 600e6, Overdue: expired}},
		}}}
		assert.Contains(t, strings.Join(e.statusLines(status, false), "\n"), " "+want)
	}
}
