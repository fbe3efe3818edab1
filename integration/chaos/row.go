package chaos

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Row is the result of one fault for one app on one broker.
type Row struct {
	Fault, Broker, App                             string
	Published, Processed, Dead, Waiting, Destroyed int
	Lost, Duplicates                               int
	Recovered                                      time.Duration
	PeakMiB                                        int
	Before, After                                  int // goroutines
	Took                                           time.Duration
	Stuck                                          bool   // messages were open, and none had moved for a long time
	NotRun                                         string // why there are no numbers
}

// newRows returns a row for each app. why is the reason why the rows are not run, or "".
func newRows(fault Fault, b Broker, why string) []Row {
	var rows []Row
	for _, app := range Apps() {
		rows = append(rows, Row{Fault: fault.Name, Broker: b.Name, App: app, NotRun: why})
	}
	return rows
}

func (r Row) String() string {
	if r.NotRun != "" {
		return fmt.Sprintf("fault=%s broker=%s app=%s NOT RUN: %s", r.Fault, r.Broker, r.App, r.NotRun)
	}
	return fmt.Sprintf("fault=%s broker=%s app=%s published=%d processed=%d dead=%d waiting=%d destroyed=%d lost=%d duplicates=%d recovered_s=%.2f peak_mib=%d goroutines=%d/%d",
		r.Fault, r.Broker, r.App, r.Published, r.Processed, r.Dead, r.Waiting, r.Destroyed, r.Lost, r.Duplicates,
		r.Recovered.Seconds(), r.PeakMiB, r.Before, r.After)
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

// Summary prints all rows as a table, with the totals of each app and of all, and reports whether all rows are fine.
func Summary(w io.Writer, rows []Row) bool {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "fault\tbroker\tapp\tpublished\tprocessed\tdead\twaiting\tdestroyed\tlost\tduplicates\trecovered\tpeak MiB\tgoroutines\ttook\t")
	fine := len(rows) > 0
	for _, r := range rows {
		fine = fine && r.Faulty() == ""
		if r.NotRun != "" {
			fmt.Fprintf(table, "%s\t%s\t%s\tnot run\t\t\t\t\t\t\t\t\t\t\t%s\n", r.Fault, r.Broker, r.App, r.NotRun)
			continue
		}
		fmt.Fprintf(table, "%s\t%.2f s\t%d\t%d/%d\t%.0f s\t%s\n", r.counts(), r.Recovered.Seconds(), r.PeakMiB, r.Before, r.After,
			r.Took.Seconds(), r.Faulty())
	}
	for _, app := range append(Apps(), "all") {
		total := Row{Fault: "all", App: app}
		for _, r := range rows {
			if r.NotRun == "" && (r.App == app || app == "all") {
				total.add(r)
			}
		}
		fmt.Fprintf(table, "%s\t\t\t\t\t\n", total.counts())
	}
	_ = table.Flush()
	return fine
}

// counts returns the first columns of the table.
func (r Row) counts() string {
	return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d", r.Fault, r.Broker, r.App, r.Published, r.Processed, r.Dead, r.Waiting,
		r.Destroyed, r.Lost, r.Duplicates)
}

func (r *Row) add(other Row) {
	r.Published += other.Published
	r.Processed += other.Processed
	r.Dead += other.Dead
	r.Waiting += other.Waiting
	r.Destroyed += other.Destroyed
	r.Lost += other.Lost
	r.Duplicates += other.Duplicates
}
