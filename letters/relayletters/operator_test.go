package relayletters_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/operatetest"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// looker is a shelf that shows what waits.
type looker struct {
	*shelf
	waiting []operate.Waiting
}

func (l looker) Keys(context.Context) ([]string, error)             { return nil, nil }
func (l looker) Waiting(context.Context) ([]operate.Waiting, error) { return l.waiting, nil }
func (l looker) Check(context.Context) (operate.Checked, error)     { return operate.Checked{}, nil }

// TestRulesOfEveryBackend: each rule finds its fault in what waits, and none where all is well.
func TestRulesOfEveryBackend(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for name, row := range map[string]struct {
		waiting             operate.Waiting
		rule, subject, what string
	}{
		"well":            {operate.Waiting{Name: "billing.orders", Retries: 3, Dead: 2}, "", "", ""},
		"overdue":         {operate.Waiting{Name: "billing.orders", Overdue: 3, NextDue: due}, "overdue", "billing.orders", "3 messages are due for more than 5s, the first since 2026-11-25T12:00:00Z"},
		"none is unknown": {operate.Waiting{Name: "unknown"}, "", "", ""},
		"unknown":         {operate.Waiting{Name: "unknown", Dead: 2}, "unknown", "retry.dead.unknown", "2 dead letters name no handler"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf()
			store := s.letters(t, func(c *relayletters.Config) { c.Reader = looker{s, []operate.Waiting{row.waiting}} })
			operatetest.Finds(t, func(c *operate.Checked) {
				var err error
				*c, err = operate.Of(store).Check(t.Context())
				require.NoError(t, err)
			}, row.rule, row.subject, row.what)
		})
	}
}

// slowLooker is a looker that takes two seconds for each look, and counts them.
type slowLooker struct {
	looker
	looks *int
}

func (l slowLooker) Waiting(context.Context) ([]operate.Waiting, error) {
	*l.looks++
	time.Sleep(2 * time.Second)
	return l.waiting, nil
}

// TestACanaryLooksForConsumers: of its own key only. A look can read all that waits, so a backend that shows no consumers
// is asked once, and one that takes long is asked less often.
func TestACanaryLooksForConsumers(t *testing.T) {
	t.Parallel()
	none, two := 0, 2
	for name, row := range map[string]struct {
		own, other  *int
		least, most int // looks
		want        string
	}{
		"shown":       {&two, &none, 100, 180, ""},
		"not shown":   {nil, nil, 1, 1, ""},
		"none":        {&none, &two, 10, 10, `"billing" has no consumer`},
		"own unknown": {nil, &none, 100, 180, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, looks := newShelf(), 0
				s.dead(t, 0, 3)
				s.handlers["retry.return.billing"] = true
				store := s.letters(t, func(c *relayletters.Config) {
					c.Reader = slowLooker{looker{s, []operate.Waiting{
						{Name: "another", Consumers: row.other}, {Name: "billing", Consumers: row.own},
					}}, &looks}
				})
				_, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{Canary: 2, CanaryWait: time.Hour})
				if row.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, row.want)
				}
				assert.GreaterOrEqual(t, looks, row.least)
				assert.LessOrEqual(t, looks, row.most)
			})
		})
	}
}
