// Command retrybench measures the cost of retries. First, the cost of the middleware when a handler succeeds, compared with a bare
// handler and with Watermill's Retry. Second, on the broker at AMQP_URL, how late messages come back from their tiers. Third, how many
// deliveries a second an app handles there, compared with what a user would write by hand. Fourth, how evenly messages that have failed
// together come back with jitter. Fifth, what an outage costs with a breaker and without.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	pairs := flag.Int("pairs", 15, "alternating pairs per comparison")
	duration := flag.Duration("duration", time.Second, "how long retries are measured for")
	rounds := flag.Int("rounds", 5, "rounds of the measurements against code by hand, at most -pairs")
	messages := flag.Int("messages", 10_000, "messages of a storm")
	only := flag.String("only", "", "measure only the sides against code by hand whose names match this regular expression, or the outage if \"outage\" does, or the jitter if \"jitter\" does, and nothing else")
	profiles := flag.String("profiles", "", "folder for a processor profile of each side")
	process := flag.Int("broker-process", 0, "process id of the broker on this machine, to measure its processor time too (Linux)")
	lasts := flag.Duration("outage", 2*time.Minute, "how long the outage lasts in which as many messages arrive")
	flag.BoolVar(&atLeastOnce, "at-least-once", false, "by hand, the queue on which messages wait dead-letters at least once too, as the library's tiers")
	flag.Parse()
	bench := brokerBench{uri: os.Getenv("AMQP_URL"), rounds: max(min(*rounds, *pairs), 1), messages: max(*messages, dieEvery), profiles: *profiles, process: *process, outage: *lasts}
	if *only != "" {
		bench.only = regexp.MustCompile(*only)
	}
	claims, err := measure(bench, *pairs, *duration)
	if err != nil {
		fmt.Fprintln(os.Stderr, "retrybench:", err)
		os.Exit(1)
	}
	fmt.Println()
	fmt.Println(strings.Join(claims, "\n"))
}

func measure(bench brokerBench, pairs int, duration time.Duration) ([]string, error) {
	if bench.uri == "" {
		return nil, errors.New("AMQP_URL is not set")
	}
	if bench.only != nil {
		return bench.measure()
	}
	claims, err := measureSuccess(pairs)
	if err != nil {
		return nil, err
	}
	late, err := measureLateness(bench.uri, duration)
	if err != nil {
		return nil, err
	}
	claims = append(claims, late...)
	rates, err := bench.measure()
	return append(claims, rates...), err
}

// claim formats a claim that is true if measured is at most the target.
func claim(name, unit string, measured, target float64) string {
	return claimLine(name, unit, measured, target, measured <= target)
}

// claimAtLeast formats a claim that is true if measured is at least the target.
func claimAtLeast(name string, measured, target float64) string {
	return claimLine(name, "", measured, target, measured >= target)
}

func claimLine(name, unit string, measured, target float64, reached bool) string {
	verdict := "ok"
	if !reached {
		verdict = "missed"
	}
	return fmt.Sprintf("claim %s measured=%.3g%s target=%g%s %s", name, measured, unit, target, unit, verdict)
}

func percentile(sorted []float64, p float64) float64 {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

func median(values []float64) float64 { return percentile(slices.Sorted(slices.Values(values)), 0.5) }
