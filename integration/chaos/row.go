package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is the result of one fault for one app on one broker.
type Row struct {
	Fault, Broker                                  string
	Published, Processed, Dead, Waiting, Destroyed int
	Lost, Duplicates                               int
	Recovered                                      time.Duration
	Before, After                                  int // goroutines
	Took                                           time.Duration
	Stuck                                          bool   // messages were open, and none had moved for a long time
	NotRun                                         string // why there are no numbers
}

func (r Row) String() string {
	if r.NotRun != "" {
		return fmt.Sprintf("fault=%s broker=%s NOT RUN: %s", r.Fault, r.Broker, r.NotRun)
	}
	return fmt.Sprintf("fault=%s broker=%s published=%d processed=%d dead=%d waiting=%d destroyed=%d lost=%d "+
		"duplicates=%d recovered_s=%.2f goroutines=%d/%d", r.Fault, r.Broker, r.Published, r.Processed, r.Dead,
		r.Waiting, r.Destroyed, r.Lost, r.Duplicates, r.Recovered.Seconds(), r.Before, r.After)
}

// Faulty returns what is wrong with the row, or "" if nothing is.
func (r Row) Faulty() string {
	switch {
	case r.NotRun != "":
		return "not run"
	case r.Lost > 0:
		return "LOST"
	case r.Stuck:
		return "not recovered"
	case r.Published == 0:
		return "nothing published"
	case r.After > r.Before:
		return "goroutines leaked"
	case (r.Fault == none || r.Fault == requests) && r.Duplicates > 0:
		return "duplicates without a fault"
	case r.Fault == none && r.Waiting > 0:
		return "waiting without a fault"
	}
	return ""
}

// Summary prints all rows as a table, with their totals, and reports whether all rows are fine.
func Summary(w io.Writer, rows []Row) bool {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join([]string{"fault", "broker", "published", "processed", "dead", "waiting",
		"destroyed", "lost", "duplicates", "recovered", "goroutines", "took", ""}, "\t"))
	fine := len(rows) > 0
	total := Row{Fault: "all"}
	for _, r := range rows {
		fine = fine && r.Faulty() == ""
		if r.NotRun != "" {
			fmt.Fprintf(table, "%s\t%s\tnot run\t\t\t\t\t\t\t\t\t\t%s\n", r.Fault, r.Broker, r.NotRun)
			continue
		}
		fmt.Fprintf(table, "%s\t%.2f s\t%d/%d\t%.0f s\t%s\n", r.counts(), r.Recovered.Seconds(), r.Before, r.After,
			r.Took.Seconds(),
			r.Faulty())
		total.Published += r.Published
		total.Processed += r.Processed
		total.Dead += r.Dead
		total.Waiting += r.Waiting
		total.Destroyed += r.Destroyed
		total.Lost += r.Lost
		total.Duplicates += r.Duplicates
	}
	fmt.Fprintf(table, "%s\t\t\t\t\n", total.counts())
	_ = table.Flush()
	return fine
}

// counts returns the first columns of the table.
func (r Row) counts() string {
	return fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d", r.Fault, r.Broker, r.Published, r.Processed, r.Dead,
		r.Waiting,
		r.Destroyed, r.Lost, r.Duplicates)
}
