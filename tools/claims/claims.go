// Package claims is what the programs of `make bench` have in common: their claims, the figures, and what figures are
// computed with.
package claims

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// List is claims.txt: all claims. docs/benchmarks.md has those that help a decision, with figures.
//
//go:embed claims.txt
var List []byte

// A Claim compares a figure with its target. Name, What and Bound are texts of the list.
type Claim struct {
	Name, What, Bound string
	least             bool // the target is a lower bound, else an upper one
	target            float64
	unit              string
}

var row = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (.*?) \\| ((?:at (least|most) )?([0-9.]+)(?: ([^ |]+))?) \\|")

// Of returns the claims of a list below a heading of the second level, in their order.
func Of(list []byte, heading string) (all []Claim) {
	for _, match := range row.FindAllStringSubmatch(Section(list, heading), -1) {
		target, _ := strconv.ParseFloat(match[5], 64)
		all = append(all, Claim{match[1], match[2], match[3], match[4] == "least", target, match[6]})
	}
	return all
}

// Section returns the text below a heading of the second level.
func Section(list []byte, heading string) string {
	_, text, _ := strings.Cut(string(list), "\n## "+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// A Report has the figures of a run.
type Report struct {
	Claims  []Claim
	Figures []Figure
}

// A Figure is what was measured for a claim. Its Series is the title of its column.
type Figure struct {
	Claim
	Series string
	Value  float64
}

// Add adds a figure to the claim of a name, which must be in the list.
func (r *Report) Add(name, series string, value float64) Figure {
	i := slices.IndexFunc(r.Claims, func(c Claim) bool { return c.Name == name })
	if i < 0 {
		panic("tools/claims/claims.txt has no claim " + name)
	}
	f := Figure{r.Claims[i], series, value}
	r.Figures = append(r.Figures, f)
	return f
}

func (f Figure) verdict() string {
	if f.least && f.Value >= f.target || !f.least && f.Value <= f.target {
		return "ok"
	}
	return "missed"
}

func (f Figure) String() string {
	return fmt.Sprintf("claim %s@%s measured=%s%s target=%s%s %s",
		f.Name, f.Series, Digits(f.Value), f.unit, Digits(f.target), f.unit, f.verdict())
}

// String has a row for each claim that was measured, with a column for each series, and the names of the others.
func (r *Report) String() string {
	head := "| claim | what it is | target |"
	var series, lacks []string
	for _, f := range r.Figures {
		if !slices.Contains(series, f.Series) {
			series = append(series, f.Series)
			head += " " + f.Series + " |"
		}
	}
	text := fmt.Sprintf("%s, %d processors, %s.\n\n%s\n|%s\n", time.Now().Format(time.DateOnly), runtime.NumCPU(),
		runtime.Version(), head, strings.Repeat("---|", 3+len(series)))
	for _, c := range r.Claims {
		cells, measured := fmt.Sprintf("| `%s` | %s | %s |", c.Name, c.What, c.Bound), false
		for _, s := range series {
			cell := ""
			for _, f := range r.Figures {
				if f.Name == c.Name && f.Series == s {
					measured = true
					cell = strings.TrimSpace(Digits(f.Value) + " " + f.unit)
					cell = strings.TrimSuffix(cell+": "+f.verdict(), ": ok")
				}
			}
			cells += " " + cell + " |"
		}
		if measured {
			text += cells + "\n"
		} else {
			lacks = append(lacks, c.Name)
		}
	}
	return text + "\nnot measured: " + strings.Join(lacks, " ") + "\n"
}

// Print prints the report, and a line for each figure.
func (r *Report) Print() {
	fmt.Printf("\n%s\n", r)
	for _, f := range r.Figures {
		fmt.Println(f)
	}
}

// Backend is how the names of the questions about other Pub/Subs begin. The others are about RabbitMQ.
const Backend = "backend-"

// Chosen returns the questions of a program that a regular expression matches: all where it is empty. Both programs get
// the same one. That it matches nothing is an error in the program that it is for.
func Chosen(only string, questions []string) (chosen []string, err error) {
	expression, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	for _, q := range questions {
		if expression.MatchString(q) {
			chosen = append(chosen, q)
		}
	}
	if ours := strings.HasPrefix(questions[0], Backend); len(chosen) == 0 && ours == strings.Contains(only, Backend) {
		return nil, fmt.Errorf("no question matches -only %q: the questions are %s; those about other Pub/Subs "+
			"begin with %s", only, strings.Join(questions, ", "), Backend)
	}
	return chosen, nil
}

// Digits formats a figure with three digits, or all before the point.
func Digits(value float64) string {
	if value >= 1000 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

// Percentile sorts the values.
func Percentile[T float64 | time.Duration](values []T, p float64) T {
	slices.Sort(values)
	return values[min(int(p*float64(len(values))), len(values)-1)]
}

// Median of the values.
func Median(values []float64) float64 { return Percentile(slices.Clone(values), 0.5) }

// Spread is the median, and the lowest and the highest value.
func Spread(values []float64) string {
	return fmt.Sprintf("%s (%s to %s)", Digits(Median(values)), Digits(slices.Min(values)), Digits(slices.Max(values)))
}

// Together calls a function n times at the same time, and returns all errors.
func Together(n int, do func(i int) error) error {
	faults := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { faults[i] = do(i) })
	}
	group.Wait()
	return errors.Join(faults...)
}
