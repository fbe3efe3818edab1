package claims

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Program is one of those that `make bench` runs: their flags, and the claims that they measure.
type Program struct {
	*Report
	Profiles string // the folder of the CPU profiles; empty: none
	Short    bool   // everything small: the figures mean nothing
	rounds   int
	only     string
	claiming sync.Mutex
}

// Main reads the flags, asks the questions that they choose, and prints the claims below a heading of the list. It ends
// the process with status 1 after an error.
func (p *Program) Main(heading string, questions []string, ask func(chosen []string) error) {
	all := strings.Join(questions, ", ")
	flag.StringVar(&p.only, "only", "", "regular expression of the questions; all if empty: "+all)
	flag.BoolVar(&p.Short, "short", false, "everything small, within minutes: only lost and early messages count")
	flag.IntVar(&p.rounds, "rounds", 0, "rounds of each comparison; by default each has its own number")
	flag.StringVar(&p.Profiles, "profile", "", "folder for a CPU profile of each side of a contest, of its last round")
	flag.Parse()
	chosen, err := Chosen(p.only, questions)
	if err == nil && len(chosen) > 0 {
		err = p.ask(heading, chosen, ask)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (p *Program) ask(heading string, chosen []string, ask func([]string) error) error {
	p.Report = &Report{Claims: Of(List, heading)}
	defer p.Print()
	return ask(chosen)
}

// Size is the size of a measurement, or a short one.
func (p *Program) Size(full, short int) int {
	if p.Short {
		return short
	}
	return full
}

// Claim adds a figure to the claim of a name, and prints it.
func (p *Program) Claim(name, series string, value float64) {
	p.claiming.Lock()
	defer p.claiming.Unlock()
	fmt.Println(p.Add(name, series, value))
}

// Ratio divides the figures of two sides round by round, prints the ratios, and claims their median.
func (p *Program) Ratio(name, series string, ours, theirs []float64) {
	all := slices.Clone(ours)
	for round := range all {
		all[round] /= theirs[round]
	}
	fmt.Printf("%s, by rounds: %s\n", name, Spread(all))
	p.Claim(name, series, Median(all))
}

// Compare measures sides in turns, so that the load of a shared machine affects all of them alike. Another side is
// first in each round. It prints the figures of each side, and returns them by round.
func (p *Program) Compare(
	title string, rounds int, sides []string, measure func(side int) (float64, error),
) ([][]float64, error) {
	figures := make([][]float64, len(sides))
	for round := range cmp.Or(p.rounds, p.Size(rounds, 1)) {
		for i := range sides {
			side := (i + round) % len(sides)
			figure, err := measure(side)
			if err != nil {
				return nil, err
			}
			figures[side] = append(figures[side], figure)
		}
	}
	for i, side := range sides {
		fmt.Printf("%s, %s: %s\n", title, side, Spread(figures[i]))
	}
	return figures, nil
}

// Ask measures the question of a name, and prints how long that took.
func Ask(name string, measure func() error) error {
	began := time.Now()
	if err := measure(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Printf("%s took %v\n", name, time.Since(began).Round(time.Second))
	return nil
}

// Profile writes a CPU profile of this process until end. It does nothing where the file has no name.
func Profile(name string) (end func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error { pprof.StopCPUProfile(); return file.Close() }, nil
}
