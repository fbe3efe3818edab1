package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/tools/child"
)

func TestMain(m *testing.M) {
	child.Main(roles) // the processes of rows and consumers run this binary
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
	var again []Fault // on the node restarted
	restarted := false
	run := func(fault Fault) {
		row := Run(ctx, fault, b, Options{Messages: 300, Short: true, Keys: 50, Each: 20})
		mu.Lock()
		defer mu.Unlock()
		if row.Faulty() != "" && !fault.Alone() && !restarted && !b.forwards() {
			again = append(again, fault)
			return
		}
		fmt.Println(row) // now: a test that takes too long has no log
		if what := row.Faulty(); what != "" {
			t.Errorf("%s: %s", row.Fault, what)
		}
		rows = append(rows, row)
	}
	missing := func(f Fault) string {
		if f.Needs&needsMinutes != 0 {
			return "takes long"
		}
		return f.Missing(b)
	}
	var leftOut []string
	var beside sync.WaitGroup
	places := make(chan struct{}, 4)
	for _, fault := range All() {
		if why := missing(fault); why != "" {
			leftOut = append(leftOut, fault.Name+" "+why)
		} else if !fault.Alone() && ctx.Err() == nil {
			places <- struct{}{}
			beside.Go(func() { run(fault); <-places })
		}
	}
	beside.Wait()
	if restarted = true; len(again) > 0 {
		if err := b.restart(); err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range again {
		run(fault)
	}
	for _, fault := range All() {
		if missing(fault) == "" && fault.Alone() && ctx.Err() == nil {
			run(fault)
		}
	}
	t.Logf("not run here, but by make chaos: %s", strings.Join(leftOut, "; "))
	total, _ := Total(rows)
	t.Log(total)
}

// TestLedgerFindsLoss proves that the suite can fail.
func TestLedgerFindsLoss(t *testing.T) {
	l, err := newLedger(Options{}, false)
	if err != nil {
		t.Fatal(err)
	}
	l.close()
	handled := func(n int) { _ = l.Handled(Call{Identity: identityOf(n)}, nil) }
	moved := func(n int) { _ = l.Moved(Move{identityOf(n), "tier", time.Hour, false}, nil) }
	for i := range 9 {
		l.confirmed(identityOf(i), "work")
	}
	handled(0)
	handled(1)
	handled(1) // twice
	handled(2) // and dead
	moved(5)
	moved(6)
	handled(7) // it dies: that is no effect
	time.Sleep(2 * time.Millisecond)
	l.queueDeleted(deletion{queue: "tier", begin: time.Now(), count: 1}) // one of two
	var row Row
	missing := l.settle(&row, appConfig{}, map[string]int{identityOf(2): 1, identityOf(3): 1, identityOf(7): 1},
		map[string]int{identityOf(4): 1})
	want := Row{Published: 9, Processed: 3, Dead: 3, Waiting: 1, Destroyed: 1, Lost: 2, Duplicates: 2}
	if row != want || len(missing) != 3 { // and the deletion
		t.Errorf("got  %s, missing %v\nwant %s", row, missing, want)
	}
	if row.Faulty() != "LOST" {
		t.Errorf("Faulty returned %q", row.Faulty())
	}
}

// TestLedgerFindsWhatIsOutOfOrder proves that the rows of an order can fail.
func TestLedgerFindsWhatIsOutOfOrder(t *testing.T) {
	const first, second = 1, 2 // sessions
	type event struct {
		Call
		effect bool
	}
	effect := func(session int, numbers ...int) (all []event) {
		for _, n := range numbers {
			all = append(all, event{Call{Identity: orderIdentity("key", n), Process: 1, Session: session}, true})
		}
		return all
	}
	begin := event{Call: Call{Identity: orderIdentity("key", 2), Process: 1, Session: first}}
	for name, test := range map[string]struct {
		calls []event
		want  Row
	}{
		"in order":              {effect(first, 0, 1, 2, 3), Row{}},
		"a rewind":              {effect(first, 0, 1, 2, 1, 2, 3), Row{Rewinds: 1}},
		"a message is late":     {effect(first, 0, 2, 1, 3), Row{Inversions: 2, Rewinds: 1}},
		"an old one came alone": {effect(first, 0, 1, 2, 0, 3), Row{Inversions: 1, Rewinds: 1}},
		"one is missing":        {effect(first, 0, 2, 3), Row{Gaps: 1, Lost: 1}},
		"one call too early":    {append([]event{begin}, effect(first, 0, 1, 2, 3)...), Row{Inversions: 1}},
		"two calls at once":     {append(append(effect(first, 0, 1), begin, begin), effect(first, 2, 3)...), Row{Inversions: 1}},
		"a stale call": {slices.Concat(effect(first, 0, 1), effect(second, 1, 2, 3), effect(first, 2)),
			Row{Rewinds: 1, StaleCalls: 1}},
	} {
		l, err := newLedger(Options{}, true)
		if err != nil {
			t.Fatal(err)
		}
		l.close()
		for n := range 4 {
			l.confirmed(orderIdentity("key", n), "work")
		}
		for _, c := range test.calls {
			if c.effect {
				_ = l.Handled(c.Call, nil)
			} else {
				_ = l.Called(c.Call, new(Answer))
			}
		}
		var row Row
		wrong := l.settle(&row, appConfig{}, nil, nil)
		got := Row{Inversions: row.Inversions, Gaps: row.Gaps, Lost: row.Lost, Rewinds: row.Rewinds, StaleCalls: row.StaleCalls}
		if got != test.want || row.Published != 4 {
			t.Errorf("%s: got %s, want %s; %q", name, row, test.want, wrong)
		}
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
		"goroutines leaked":          {Published: 1, Leaked: true},
		"duplicates without a fault": {Fault: none, Published: 1, Duplicates: 1},
		"waiting without a fault":    {Fault: none, Published: 1, Waiting: 1},
		"INVERSIONS":                 {Published: 1, Inversions: 1, Stuck: true},
		"GAPS":                       {Published: 1, Gaps: 1},
		"rewinds without a fault":    {Fault: orderNone, Published: 1, Rewinds: 1},
		"stale calls, but no process lost its partition without notice": {Fault: orderKilled, Published: 1, StaleCalls: 1},
	} {
		if got := row.Faulty(); got != want {
			t.Errorf("%v: Faulty returned %q, want %q", row, got, want)
		}
	}
}

// TestTotal: a row that was not run counts in no sum, and is not fine.
func TestTotal(t *testing.T) {
	total, faulty := Total([]Row{
		{Fault: none, Broker: "4.0", Published: 5, Processed: 4, Dead: 1},
		{Fault: "some", Broker: "4.0", Published: 70, Processed: 60, Waiting: 10, Duplicates: 2},
		{Fault: none, Broker: "4.3", Published: 300, Processed: 200, Destroyed: 100},
		{Fault: "other", Broker: "4.3", NotRun: "why"},
	})
	if !strings.HasPrefix(total.String(), "fault=all broker=all published=375 processed=264 dead=1 waiting=10 "+
		"destroyed=100 lost=0 duplicates=2 ") || !strings.HasSuffix(total.String(), " ok") {
		t.Errorf("the total is %s", total)
	}
	if len(faulty) != 1 || faulty[0] != "other on 4.3: not run" {
		t.Errorf("not fine are %q", faulty)
	}
}

// A fault that was asked for is not left out unseen.
func TestAFaultThatNeedsAClusterIsARowWhereItIsNamed(t *testing.T) {
	for name, asked := range map[string]bool{"named": true, "all faults": false} {
		t.Run(name, func(t *testing.T) {
			s := suite{asked: asked, faults: slices.DeleteFunc(All(), func(f Fault) bool { return !f.Clustered() })}
			require.NoError(t, s.all(t.Context(), "4.3=amqp://nowhere", ""))
			_, faulty := Total(s.rows)
			assert.Equal(t, asked, len(faulty) > 0 && len(faulty) == len(s.faults))
			assert.Len(t, faulty, len(s.rows))
		})
	}
}

func TestARowThatHangsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ended := make(chan error, 1)
		began := time.Now()
		_, hangs := await(ctx, ended, toEnd)
		assert.True(t, hangs)
		assert.Equal(t, time.Hour+toEnd, time.Since(began))
		ended <- errBank
		err, hangs := await(ctx, ended, toEnd)
		assert.ErrorIs(t, err, errBank)
		assert.False(t, hangs)
	})
}
