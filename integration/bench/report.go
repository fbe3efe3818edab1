package main

import (
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page has the claims. bench runs in the folder integration.
const page = "../docs/benchmarks.md"

// A claim compares a figure with its target, on each broker. name, what and bound are texts of the page.
type claim struct {
	name, what, bound string
	least             bool // the target is a lower bound, else an upper one
	target            float64
	unit              string
}

var claimRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (.*?) \\| " +
	"((?:at (least|most) )?([0-9.]+)(?: ([^ |]+))?) \\|")

// claimsOf returns the claims of a page, in its order.
func claimsOf(page []byte) (all []claim) {
	for _, match := range claimRow.FindAllStringSubmatch(string(page), -1) {
		target, _ := strconv.ParseFloat(match[5], 64)
		all = append(all, claim{match[1], match[2], match[3], match[4] == "least", target, match[6]})
	}
	return all
}

// A report has the figures of a run.
type report struct {
	claims  []claim
	figures []figure
}

// A figure is what was measured for a claim.
type figure struct {
	claim
	series string // major and minor of the broker's version
	value  float64
}

func (f figure) verdict() string {
	if f.least && f.value >= f.target || !f.least && f.value <= f.target {
		return "ok"
	}
	return "missed"
}

func (f figure) String() string {
	return fmt.Sprintf("claim %s@%s measured=%s%s target=%s%s %s",
		f.name, f.series, digits(f.value), f.unit, digits(f.target), f.unit, f.verdict())
}

// claim adds a figure to the claim of a name.
func (b *bench) claim(name string, value float64) {
	i := slices.IndexFunc(b.claims, func(c claim) bool { return c.name == name })
	if i < 0 {
		panic("docs/benchmarks.md has no claim " + name)
	}
	f := figure{b.claims[i], b.series(), value}
	fmt.Println(f)
	b.figures = append(b.figures, f)
}

// note prints what was measured besides the claims.
func (b *bench) note(format string, arguments ...any) { fmt.Printf(format+"\n", arguments...) }

// String has a row for each claim that was measured, with a column for each broker, and the names of the others. A
// restart needs a cluster, some others a process.
func (r *report) String() string {
	head := "| claim | what it is | target |"
	var series, lacks []string
	for _, f := range r.figures {
		if !slices.Contains(series, f.series) {
			series = append(series, f.series)
			head += " " + f.series + " |"
		}
	}
	text := fmt.Sprintf("%s, %d processors, %s.\n\n%s\n|%s\n", time.Now().Format(time.DateOnly), runtime.NumCPU(),
		runtime.Version(), head, strings.Repeat("---|", 3+len(series)))
	for _, c := range r.claims {
		cells, measured := fmt.Sprintf("| `%s` | %s | %s |", c.name, c.what, c.bound), false
		for _, s := range series {
			cell := ""
			for _, f := range r.figures {
				if f.name == c.name && f.series == s {
					measured = true
					cell = strings.TrimSuffix(strings.TrimSpace(digits(f.value)+" "+f.unit)+": "+f.verdict(), ": ok")
				}
			}
			cells += " " + cell + " |"
		}
		if measured {
			text += cells + "\n"
		} else {
			lacks = append(lacks, c.name)
		}
	}
	return text + "\nnot measured: " + strings.Join(lacks, " ") + "\n"
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
