package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// A report has the figures of a run.
type report struct {
	versions []string
	claims   []string
	tables   []*table

	lateness []latenessResult
	worker   []workerResult
	million  []millionResult
	growth   []growthResult
	start    []startResult
	cost     []costResult
}

// A table is one of the page's, with the rows of all brokers.
type table struct {
	title   string
	columns []string
	rows    [][]string
}

// row adds a row to the table of a title.
func (r *report) row(title string, columns []string, cells ...string) {
	i := slices.IndexFunc(r.tables, func(t *table) bool { return t.title == title })
	if i < 0 {
		i = len(r.tables)
		r.tables = append(r.tables, &table{title: title, columns: columns})
	}
	r.tables[i].rows = append(r.tables[i].rows, cells)
	fmt.Println(strings.Join(cells, " | "))
}

// heading names the machine, the versions and the date.
func (r *report) heading() string {
	return fmt.Sprintf("%s, %d processors (%s), %s, RabbitMQ %s", time.Now().Format(time.DateOnly), runtime.NumCPU(), processor(), runtime.Version(),
		strings.Join(r.versions, ", "))
}

// processor is the model of the processors, read from Linux's /proc.
func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func (r *report) markdown() string {
	var text strings.Builder
	for _, t := range r.tables {
		fmt.Fprintf(&text, "%s\n\n| %s |\n|%s\n", t.title, strings.Join(t.columns, " | "), strings.Repeat("---|", len(t.columns)))
		for _, cells := range t.rows {
			fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | "))
		}
		text.WriteString("\n")
	}
	return text.String()
}

// claimAtMost adds a claim that is true if measured is at most the target.
func (r *report) claimAtMost(s *server, name, unit string, measured, target float64) {
	r.claim(s, name, unit, measured, target, measured <= target)
}

// claimAtLeast adds a claim that is true if measured is at least the target.
func (r *report) claimAtLeast(s *server, name, unit string, measured, target float64) {
	r.claim(s, name, unit, measured, target, measured >= target)
}

func (r *report) claim(s *server, name, unit string, measured, target float64, reached bool) {
	verdict := "ok"
	if !reached {
		verdict = "missed"
	}
	line := fmt.Sprintf("claim %s@%s measured=%s%s target=%g%s %s", name, s.series(), short(measured), unit, target, unit, verdict)
	fmt.Println(line)
	r.claims = append(r.claims, line)
}

// short formats a figure with three digits, or all before the point.
func short(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

// number formats a whole number with commas.
func number(value float64) string {
	digits := fmt.Sprintf("%.0f", value)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func mebibytes(bytes int64) string { return number(float64(bytes)/(1<<20)) + " MiB" }

// percentile needs sorted values.
func percentile(sorted []float64, p float64) float64 {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 { return percentile(slices.Sorted(slices.Values(values)), 0.5) }

// word makes one word of a name.
func word(name string) string {
	return strings.NewReplacer(" ", "_", ",", "", "-", "_").Replace(name)
}
