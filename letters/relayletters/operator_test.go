package relayletters_test

import (
	"cmp"
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
	waiting func() ([]operate.Waiting, error)
}

func (l looker) Keys(context.Context) ([]string, error)             { return nil, nil }
func (l looker) Waiting(context.Context) ([]operate.Waiting, error) { return l.waiting() }
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
			store := s.letters(t, func(c *relayletters.Config) {
				c.Reader = looker{s, func() ([]operate.Waiting, error) { return []operate.Waiting{row.waiting}, nil }}
			})
			operatetest.Finds(t, func(c *operate.Checked) {
				var err error
				*c, err = operate.Of(store).Check(t.Context())
				require.NoError(t, err)
			}, row.rule, row.subject, row.what)
		})
	}
}

// TestACanaryLooksForConsumers: of its own key only. Where the backend shows none, a process shows itself by taking what
// is due. Where that is not seen either, the summary has it. A look can read all that waits, so one that takes long is
// repeated less often.
func TestACanaryLooksForConsumers(t *testing.T) {
	t.Parallel()
	const all, some = 3, 2 // letters, and those of the canary
	none, two, began := 0, 2, time.Now()
	key := func(w operate.Waiting) func(int) (operate.Waiting, error) {
		return func(int) (operate.Waiting, error) { return w, nil }
	}
	// due is what a backend that shows no consumers has of a key, from the second look on. The first is before the canary.
	due := func(of func(look int) operate.Waiting) func(int) (operate.Waiting, error) {
		return func(look int) (operate.Waiting, error) {
			if look == 1 {
				return operate.Waiting{Retries: 9, NextDue: began.Add(time.Hour)}, nil
			}
			return of(look), nil
		}
	}
	untouched := operate.Waiting{Retries: 9 + some, Due: some, NextDue: began}
	const untaken, unconsumed = `nothing takes what is due for "billing": its handler is paused`, `"billing" has no consumer: its`
	for name, row := range map[string]struct {
		own     func(look int) (operate.Waiting, error)
		other   *int // consumers of another key
		sent    int
		unknown bool
		want    string
	}{
		"shown":                 {key(operate.Waiting{Consumers: &two, Due: 2}), &none, all, false, ""},
		"none":                  {key(operate.Waiting{Consumers: &none}), &two, 0, false, unconsumed},
		"all are taken":         {key(operate.Waiting{}), &none, all, false, ""},
		"none is taken":         {due(func(int) operate.Waiting { return untouched }), &two, some, false, untaken},
		"none was taken before": {key(operate.Waiting{Due: 7, NextDue: began}), &two, 0, false, untaken},
		"taken late": {due(func(look int) operate.Waiting {
			if look < 4 {
				return untouched
			}
			return operate.Waiting{}
		}), &two, all, false, ""},
		"busy": {due(func(int) operate.Waiting { return operate.Waiting{Due: some, InFlight: 1, NextDue: began} }),
			&none, all, false, ""},
		"busy with others": {due(func(look int) operate.Waiting {
			return operate.Waiting{Due: 50, NextDue: began.Add(time.Duration(look))}
		}), &none, all, false, ""},
		"busy with letters of a moment": {due(func(look int) operate.Waiting {
			return operate.Waiting{Due: 5000 - look, NextDue: began}
		}), &none, all, false, ""},
		"gone in flight": {due(func(int) operate.Waiting {
			return operate.Waiting{Due: some, InFlight: 1, MaybeGone: true, NextDue: began}
		}), &two, all, true, ""},
		"not shown": {func(int) (operate.Waiting, error) { return operate.Waiting{Name: "tier 1s"}, nil }, &two, all, true, ""},
		"no look":   {func(int) (operate.Waiting, error) { return operate.Waiting{}, errDown }, &two, all, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, looks, publisher := newShelf(), 0, &sent{}
				s.dead(t, 0, all)
				s.handlers["retry.return.billing"] = true
				store := s.letters(t, func(c *relayletters.Config) {
					c.Publisher = publisher
					c.Reader = looker{s, func() ([]operate.Waiting, error) {
						looks++
						time.Sleep(2 * time.Second)
						own, err := row.own(looks)
						own.Name = cmp.Or(own.Name, "billing")
						return []operate.Waiting{{Name: "another", Due: 3, Consumers: row.other}, own}, err
					}}
				})
				summary, err := store.Redrive(t.Context(), deadTopic, letters.Redrive{Canary: some, CanaryWait: time.Hour})
				if row.want == "" {
					require.NoError(t, err)
					assert.GreaterOrEqual(t, looks, 100)
				} else {
					require.ErrorContains(t, err, row.want)
				}
				assert.LessOrEqual(t, looks, 180)
				assert.Equal(t, row.sent, summary.Done)
				assert.Equal(t, row.unknown, summary.CanaryUnknown)
				assert.Len(t, publisher.uuids, row.sent)
			})
		})
	}
}
