package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	apartMain() // the processes of rows and consumers run this binary
	os.Exit(m.Run())
}

// TestChaosShort is `make chaos` in two minutes, on one broker: shorter faults, fewer messages, only the faults that
// can run on this broker. Faults that do not disturb the broker itself run in parallel.
func TestChaosShort(t *testing.T) {
	b := FromEnvironment()
	if b.URL == "" {
		t.Fatal("AMQP_URL is not set: run `make test`, which finds or starts a RabbitMQ")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var mu sync.Mutex
	var rows []Row
	run := func(fault Fault) {
		row := Run(ctx, fault, b, Options{Messages: 300, Short: true})
		mu.Lock()
		defer mu.Unlock()
		t.Logf("%s took=%s", row, row.Took.Round(time.Second))
		if what := row.Faulty(); what != "" {
			t.Errorf("%s: %s", row.Fault, what)
		}
		rows = append(rows, row)
	}
	var leftOut []string
	var beside sync.WaitGroup
	places := make(chan struct{}, 4)
	for _, fault := range All() {
		if why := fault.Missing(b); why != "" {
			leftOut = append(leftOut, fault.Name+" "+why)
		} else if !fault.Alone() && ctx.Err() == nil {
			places <- struct{}{}
			beside.Go(func() { run(fault); <-places })
		}
	}
	beside.Wait()
	for _, fault := range All() {
		if fault.Missing(b) == "" && fault.Alone() && ctx.Err() == nil {
			run(fault)
		}
	}
	t.Logf("not run here, but by make chaos: %s", strings.Join(leftOut, "; "))
	var table strings.Builder
	Summary(&table, rows)
	t.Logf("\n%s", table.String())
}

// TestLedgerFindsLoss proves that the suite can fail.
func TestLedgerFindsLoss(t *testing.T) {
	l := newLedger()
	for i := range 8 {
		l.confirmed(identity(i), "work")
	}
	l.handled(identity(0))
	l.handled(identity(1))
	l.handled(identity(1)) // twice
	l.handled(identity(2)) // and dead
	l.moved(identity(5), "tier", time.Hour, false)
	l.moved(identity(6), "tier", time.Hour, false)
	time.Sleep(2 * time.Millisecond)
	l.queueDeleted(deletion{queue: "tier", begin: time.Now(), count: 1}) // one of two
	var row Row
	missing := l.settle(&row, appConfig{}, map[string]int{identity(2): 1, identity(3): 1},
		map[string]int{identity(4): 1})
	want := Row{Published: 8, Processed: 3, Dead: 2, Waiting: 1, Destroyed: 1, Lost: 2, Duplicates: 2}
	if row != want || len(missing) != 2 {
		t.Errorf("got  %s, missing %v\nwant %s", row, missing, want)
	}
	if row.Faulty() != "LOST" {
		t.Errorf("Faulty returned %q", row.Faulty())
	}
}

// TestRowsThatAreFaulty: only the first row may pass.
func TestRowsThatAreFaulty(t *testing.T) {
	for want, row := range map[string]Row{
		"":                           {Fault: "some", Published: 1, Waiting: 1, Duplicates: 1},
		"not run":                    {NotRun: "why"},
		"LOST":                       {Published: 1, Lost: 1, Stuck: true},
		"not recovered":              {Published: 1, Stuck: true},
		"nothing published":          {},
		"goroutines leaked":          {Published: 1, After: 1},
		"duplicates without a fault": {Fault: none, Published: 1, Duplicates: 1},
		"waiting without a fault":    {Fault: none, Published: 1, Waiting: 1},
	} {
		if got := row.Faulty(); got != want {
			t.Errorf("%v: Faulty returned %q, want %q", row, got, want)
		}
	}
}

// TestSummaryHasTotals: a row that was not run counts in no total, and fails the run.
func TestSummaryHasTotals(t *testing.T) {
	rows := []Row{
		{Fault: none, Broker: "4.0", Published: 5, Processed: 4, Dead: 1},
		{Fault: "some", Broker: "4.0", Published: 70, Processed: 60, Waiting: 10, Duplicates: 2},
		{Fault: none, Broker: "4.3", Published: 300, Processed: 200, Destroyed: 100},
	}
	var table strings.Builder
	if !Summary(&table, rows) {
		t.Error("Summary reports a fault, and no row has one")
	}
	if found := strings.Join(strings.Fields(table.String()), " "); !strings.Contains(found,
		"all 375 264 1 10 100 0 2") {
		t.Errorf("the table has no totals:\n%s", table.String())
	}
	if Summary(io.Discard, append(rows, Row{Fault: "other", NotRun: "why"})) {
		t.Error("Summary reports no fault, and a row was not run")
	}
}
