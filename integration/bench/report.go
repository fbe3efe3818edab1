package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A report has the figures of a run.
type report struct {
	brokers []*server
	figures []figure
	tables  []*table
}

// A figure is what was measured for a claim.
type figure struct {
	claim
	series string // major and minor of the broker's version
	value  float64
}

func (f figure) reached() bool {
	if f.least {
		return f.value >= f.target
	}
	return f.value <= f.target
}

func (f figure) String() string {
	verdict := "ok"
	if !f.reached() {
		verdict = "missed"
	}
	return fmt.Sprintf("claim %s@%s measured=%s%s target=%s%s %s",
		f.name, f.series, digits(f.value), f.unit, digits(f.target), f.unit, verdict)
}

// claim adds a figure to the claim of a name.
func (b *bench) claim(name string, value float64) {
	i := slices.IndexFunc(claims, func(c claim) bool { return c.name == name })
	f := figure{claims[i], b.series(), value}
	fmt.Println(f)
	b.figures = append(b.figures, f)
}

// complete reports the claims that a run of all questions has not measured. A restart needs a cluster, some others a
// process.
func (r *report) complete() {
	var lacks []string
	for _, broker := range r.brokers {
		for _, c := range claims {
			there := func(f figure) bool { return f.name == c.name && f.series == broker.series() }
			if !slices.ContainsFunc(r.figures, there) {
				lacks = append(lacks, c.name+"@"+broker.series())
			}
		}
	}
	if len(lacks) > 0 {
		fmt.Printf("\nnot measured: %s\n", strings.Join(lacks, " "))
	}
}

func (r *report) lines() string {
	var text strings.Builder
	for _, f := range r.figures {
		fmt.Fprintln(&text, f)
	}
	return text.String()
}

// A table has rows of all brokers.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

// row adds a row to the table of a title, with the version of the broker in its first column.
func (b *bench) row(title string, columns []string, cells ...any) {
	i := slices.IndexFunc(b.tables, func(t *table) bool { return t.title == title })
	if i < 0 {
		i = len(b.tables)
		b.tables = append(b.tables, &table{title: title, columns: append([]string{"RabbitMQ"}, columns...)})
	}
	words := []string{b.version}
	for _, cell := range cells {
		words = append(words, fmt.Sprint(cell))
	}
	b.tables[i].rows = append(b.tables[i].rows, words)
	fmt.Println(strings.Join(words, " | "))
}

// markdown has the claims, and the tables of the questions.
func (r *report) markdown() string {
	text := fmt.Sprintf("%s, %d processors, %s.\n\n%s",
		time.Now().Format(time.DateOnly), runtime.NumCPU(), runtime.Version(), r.claimsTable())
	for _, t := range r.tables {
		text += fmt.Sprintf("\n### %s\n\n%s", t.title, t)
	}
	return text
}

func (t *table) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "| %s |\n|%s\n", strings.Join(t.columns, " | "), strings.Repeat("---|", len(t.columns)))
	for _, cells := range t.rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | "))
	}
	return text.String()
}

// claimsTable has a row for each claim that was measured, and a column for each broker.
func (r *report) claimsTable() string {
	t := &table{columns: []string{"claim", "what it is", "target"}}
	var series []string
	for _, f := range r.figures {
		if !slices.Contains(series, f.series) {
			series = append(series, f.series)
			t.columns = append(t.columns, f.series)
		}
	}
	for _, c := range claims {
		cells, measured := []string{"`" + c.name + "`", c.what, bound(c)}, false
		for _, s := range series {
			cell := ""
			for _, f := range r.figures {
				if f.name == c.name && f.series == s {
					cell, measured = strings.TrimSpace(digits(f.value)+" "+f.unit), true
					if !f.reached() {
						cell += ": missed"
					}
				}
			}
			cells = append(cells, cell)
		}
		if measured {
			t.rows = append(t.rows, cells)
		}
	}
	return t.String()
}

func bound(c claim) string {
	text := strings.TrimSpace(digits(c.target) + " " + c.unit)
	switch {
	case c.least:
		return "at least " + text
	case c.target == 0:
		return text
	}
	return "at most " + text
}

// digits formats a figure with three digits, or all before the point.
func digits(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// percentile sorts the values.
func percentile[T float64 | time.Duration](values []T, p float64) T {
	slices.Sort(values)
	return values[min(int(p*float64(len(values))), len(values)-1)]
}

func median(values []float64) float64 { return percentile(slices.Clone(values), 0.5) }

// spread is the median, and the lowest and the highest value.
func spread(values []float64, format string) string {
	return fmt.Sprintf(format+" ("+format+" to "+format+")", median(values), slices.Min(values), slices.Max(values))
}

// ratios divides the values of two sides, round by round.
func ratios(ours, theirs []float64) []float64 {
	all := make([]float64, len(ours))
	for round := range all {
		all[round] = ours[round] / theirs[round]
	}
	return all
}

// alternate measures sides in turns, so that the load of a shared machine affects all of them alike. Another side is
// first in each round. It returns the figures of each side by round.
func alternate(rounds, sides int, measure func(side int) (float64, error)) ([][]float64, error) {
	all := make([][]float64, sides)
	for round := range rounds {
		for i := range sides {
			side := (i + round) % sides
			value, err := measure(side)
			if err != nil {
				return nil, err
			}
			all[side] = append(all[side], value)
		}
	}
	return all, nil
}
