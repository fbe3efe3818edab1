package main

import (
	"cmp"
	"fmt"
	"time"
)

// Row is the result of one fault for one app on one broker.
type Row struct {
	Fault, Broker                                  string
	Published, Processed, Dead, Waiting, Destroyed int
	Lost, Duplicates                               int
	Recovered                                      time.Duration
	Leaked                                         bool // goroutines
	Took                                           time.Duration
	Stuck                                          bool   // messages were open, and none had moved for a long time
	NotRun                                         string // why there are no numbers

	Ordered                       bool // only such a row has the following
	Inversions, Gaps              int
	Rewinds, StaleCalls, Sessions int           // stale: of a process that had lost the partition
	Stood                         time.Duration // the longest time without an effect
}

func (r Row) String() string {
	if r.NotRun != "" {
		return fmt.Sprintf("fault=%s broker=%s NOT RUN: %s", r.Fault, r.Broker, r.NotRun)
	}
	if r.Ordered {
		return fmt.Sprintf("fault=%s broker=%s published=%d processed=%d dead=%d inversions=%d gaps=%d lost=%d rewinds=%d "+
			"stale_calls=%d sessions=%d stood_s=%.2f leaked=%t took=%s %s", r.Fault, r.Broker, r.Published, r.Processed,
			r.Dead, r.Inversions, r.Gaps, r.Lost, r.Rewinds, r.StaleCalls, r.Sessions, r.Stood.Seconds(), r.Leaked,
			r.Took.Round(time.Second), cmp.Or(r.Faulty(), "ok"))
	}
	return fmt.Sprintf("fault=%s broker=%s published=%d processed=%d dead=%d waiting=%d destroyed=%d lost=%d "+
		"duplicates=%d recovered_s=%.2f leaked=%t took=%s %s", r.Fault, r.Broker, r.Published, r.Processed, r.Dead,
		r.Waiting, r.Destroyed, r.Lost, r.Duplicates, r.Recovered.Seconds(), r.Leaked, r.Took.Round(time.Second),
		cmp.Or(r.Faulty(), "ok"))
}

// Faulty returns what is wrong with the row, or "" if nothing is.
func (r Row) Faulty() string {
	switch {
	case r.NotRun != "":
		return "not run"
	case r.Lost > 0:
		return "LOST"
	case r.Inversions > 0:
		return "INVERSIONS"
	case r.Gaps > 0:
		return "GAPS"
	case r.Stuck:
		return "not recovered"
	case r.Published == 0:
		return "nothing published"
	case r.Leaked:
		return "goroutines leaked"
	case (r.Fault == none || r.Fault == requests) && r.Duplicates > 0:
		return "duplicates without a fault"
	case r.Fault == none && r.Waiting > 0:
		return "waiting without a fault"
	case r.Fault == orderNone && r.Rewinds > 0:
		return "rewinds without a fault"
	case r.StaleCalls > 0 && noticed[r.Fault]:
		return "stale calls, but no process lost its partition without notice"
	}
	return ""
}

// Total returns the sum of the rows that were run, and the names of those that are not fine.
func Total(rows []Row) (all Row, faulty []string) {
	all = Row{Fault: "all", Broker: "all"}
	for _, r := range rows {
		if what := r.Faulty(); what != "" {
			faulty = append(faulty, fmt.Sprintf("%s on %s: %s", r.Fault, r.Broker, what))
		}
		all.Published += r.Published
		all.Processed += r.Processed
		all.Dead += r.Dead
		all.Waiting += r.Waiting
		all.Destroyed += r.Destroyed
		all.Lost += r.Lost
		all.Duplicates += r.Duplicates
		all.Recovered = max(all.Recovered, r.Recovered)
		all.Leaked = all.Leaked || r.Leaked
		all.Stuck = all.Stuck || r.Stuck
		all.Took += r.Took
	}
	return all, faulty
}
