// Command retrybench measures the cost of retries. First, the cost of the middleware when a handler succeeds, compared with a bare
// handler and with Watermill's Retry. Second, how late messages come back from their tiers on the broker at AMQP_URL.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	pairs := flag.Int("pairs", 15, "alternating pairs per comparison")
	duration := flag.Duration("duration", time.Second, "how long retries are measured for")
	flag.Parse()
	claims, err := measure(*pairs, *duration)
	if err != nil {
		fmt.Fprintln(os.Stderr, "retrybench:", err)
		os.Exit(1)
	}
	fmt.Println()
	fmt.Println(strings.Join(claims, "\n"))
}

func measure(pairs int, duration time.Duration) ([]string, error) {
	claims, err := measureSuccess(pairs)
	if err != nil {
		return nil, err
	}
	late, err := measureLateness(duration)
	return append(claims, late...), err
}

// claim formats a claim. The claim is true if measured is at most the target.
func claim(name, unit string, measured, target float64) string {
	verdict := "ok"
	if measured > target {
		verdict = "short"
	}
	return fmt.Sprintf("claim %s measured=%.3g%s target=%g%s %s", name, measured, unit, target, unit, verdict)
}

func percentile(sorted []float64, p float64) float64 {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 { return percentile(slices.Sorted(slices.Values(values)), 0.5) }
