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
	claims   []claim
	tables   []*table

	lateness []latenessResult
	worker   []workerResult
	million  []millionResult
	growth   []growthResult
	start    []startResult
	cost     []costResult
}

// A claim compares a figure of a broker with its target.
type claim struct {
	name, series     string
	measured, target string
	verdict          string
}

func (c claim) String() string {
	target := strings.TrimPrefix(strings.TrimPrefix(c.target, atLeast), atMost)
	return fmt.Sprintf("claim %s@%s measured=%s target=%s %s", c.name, c.series, strings.ReplaceAll(c.measured, " ", ""), strings.ReplaceAll(target, " ", ""), c.verdict)
}

// A table is one of the page's, with the rows of all brokers.
type table struct {
	chart   string // the file without its ending
	title   string
	columns []string
	rows    [][]string
}

// row adds a row to the table of a title. The table is beside the chart of a question.
func (r *report) row(chart, title string, columns []string, cells ...string) {
	i := slices.IndexFunc(r.tables, func(t *table) bool { return t.title == title })
	if i < 0 {
		i = len(r.tables)
		r.tables = append(r.tables, &table{chart: chart, title: title, columns: columns})
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

// markdown is what the page shows of a run: the claims, and a chart of each question. The tables are in the program's output.
func (r *report) markdown() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s.\n\n%s", r.heading(), r.claimsTable())
	for _, t := range r.tables {
		fmt.Fprintf(&text, "\n![%s](charts/%s.svg)\n", t.title, chartFile(t.chart))
	}
	return text.String()
}

func tableText(columns []string, rows [][]string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, cells := range rows {
		fmt.Fprintf(&text, "| %s |\n", strings.Join(cells, " | "))
	}
	return text.String()
}

// claimsTable has a row for each claim and a column for each broker.
func (r *report) claimsTable() string {
	var names, brokers []string
	measured, target := map[string]string{}, map[string]string{}
	for _, c := range r.claims {
		if !slices.Contains(names, c.name) {
			names = append(names, c.name)
		}
		if !slices.Contains(brokers, c.series) {
			brokers = append(brokers, c.series)
		}
		text := c.measured
		if c.verdict != claimReached {
			text += ": " + c.verdict
		}
		measured[c.name+"@"+c.series], target[c.name] = text, c.target
	}
	columns := []string{"claim", "target"}
	for _, series := range brokers {
		columns = append(columns, "RabbitMQ "+series)
	}
	var rows [][]string
	for _, name := range names {
		row := []string{"`" + name + "`", target[name]}
		for _, series := range brokers {
			row = append(row, measured[name+"@"+series])
		}
		rows = append(rows, row)
	}
	return tableText(columns, rows)
}

// The figures of a page are between two comments.
const (
	figuresBegin = "<!-- figures of make bench-scale -->\n"
	figuresEnd   = "<!-- end of the figures -->\n"
)

// writeInto replaces the figures of a page.
func (r *report) writeInto(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), figuresBegin)
	_, after, ends := strings.Cut(rest, figuresEnd)
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q", page, figuresBegin, figuresEnd)
	}
	return os.WriteFile(page, []byte(before+figuresBegin+"\n"+r.markdown()+"\n"+figuresEnd+after), 0o644)
}

// claimAtMost adds a claim that is true if measured is at most the target.
func (r *report) claimAtMost(s *server, name, unit string, measured, target float64) {
	r.claim(s, name, atMost, unit, measured, target, measured <= target)
}

// claimAtLeast adds a claim that is true if measured is at least the target.
func (r *report) claimAtLeast(s *server, name, unit string, measured, target float64) {
	r.claim(s, name, atLeast, unit, measured, target, measured >= target)
}

const (
	claimReached = "ok"
	atMost       = "at most "
	atLeast      = "at least "
)

func (r *report) claim(s *server, name, bound, unit string, measured, target float64, reached bool) {
	if unit != "" {
		unit = " " + unit
	}
	if target == 0 {
		bound = ""
	}
	c := claim{name, s.series(), short(measured) + unit, bound + short(target) + unit, claimReached}
	if !reached {
		c.verdict = "missed"
	}
	fmt.Println(c)
	r.claims = append(r.claims, c)
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
	return strings.NewReplacer(" ", "_", ",", "", "-", "_").Replace(strings.ToLower(name))
}
