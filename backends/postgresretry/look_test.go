package postgresretry

import (
	"testing"
	"time"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/operatetest"
)

// TestRulesOfPostgreSQL: each rule finds its fault in what a server answers, and none in one that is well.
func TestRulesOfPostgreSQL(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	with := func(change func(*serverSettings)) func(*operate.Checked) {
		s := serverSettings{version: "17.2", fsync: "on", commit: "on", number: 170002, now: begun.UnixMilli()}
		change(&s)
		return func(checked *operate.Checked) { s.check(checked, begun) }
	}
	rows := func(live, dead int64) func(*operate.Checked) {
		return func(checked *operate.Checked) { deadRows(checked, "retry_messages", live, dead) }
	}
	open := func(age time.Duration) func(*operate.Checked) {
		return func(checked *operate.Checked) { openTransaction(checked, 7, "idle in transaction", age) }
	}
	for name, row := range map[string]struct {
		look       func(*operate.Checked)
		rule, what string
	}{
		"well":              {with(func(*serverSettings) {}), "", ""},
		"version":           {with(func(s *serverSettings) { s.version, s.number = "12.9", 120009 }), "version", "12.9"},
		"fsync":             {with(func(s *serverSettings) { s.fsync = "off" }), "persistence", "fsync is off"},
		"commit":            {with(func(s *serverSettings) { s.commit = "off" }), "persistence", "synchronous_commit is off"},
		"statements":        {with(func(s *serverSettings) { s.statement = 59_999 }), "timeouts", "statement_timeout is 59.999s"},
		"idle transactions": {with(func(s *serverSettings) { s.idle = 1 }), "timeouts", "idle_in_transaction_session_timeout is 1ms"},
		"long time-outs":    {with(func(s *serverSettings) { s.statement, s.idle = 60_000, 60_000 }), "", ""},
		"clock behind":      {with(func(s *serverSettings) { s.now -= 60_000 }), "clock", "is -1m0s from that"},
		"clock ahead":       {with(func(s *serverSettings) { s.now += 3_600_000 }), "clock", "from that of this host"},
		"few dead rows":     {rows(5, 10_005), "", ""},
		"dead rows":         {rows(5, 10_006), "dead-rows", "10006 dead rows beside 5 live ones"},
		"transaction":       {open(longTransaction + time.Second), "long-transaction", "is open for 5m1s (idle in transaction)"},
		"short transaction": {open(longTransaction), "", ""},
	} {
		t.Run(name, func(t *testing.T) { operatetest.Finds(t, row.look, row.rule, "", row.what) })
	}
}
