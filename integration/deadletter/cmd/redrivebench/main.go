// Command redrivebench measures the redrive of dead letters, on the broker at AMQP_URL. First, how many letters a second it sends
// without a limit, beside a loop that a user would write by hand. Second, the most memory that the command wmretry needs for a redrive
// and for a list of many letters.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

const (
	targetRate   = 5000 // letters a second
	targetMemory = 100  // MiB
)

func main() {
	letters := flag.Int("letters", 100_000, "dead letters of the measurement of memory, at least 1,000; half as many for the rate")
	byHand := flag.Int("by-hand", 3000, "dead letters of the loop by hand")
	rounds := flag.Int("rounds", 3, "rounds of the measurements of the rate; the median counts")
	size := flag.Int("size", 1024, "bytes of a letter's body")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	claims, err := measure(ctx, bench{uri: os.Getenv("AMQP_URL"), letters: max(*letters, 1000), byHand: max(*byHand, 100), rounds: max(*rounds, 1), size: *size})
	if err != nil {
		fmt.Fprintln(os.Stderr, "redrivebench:", err)
		os.Exit(1)
	}
	fmt.Println()
	fmt.Println(strings.Join(claims, "\n"))
}

// A bench is what to measure.
type bench struct {
	uri                           string
	letters, byHand, rounds, size int
}

func measure(ctx context.Context, b bench) ([]string, error) {
	if b.uri == "" {
		return nil, errors.New("AMQP_URL is not set")
	}
	rates, err := b.measureRate(ctx)
	if err != nil {
		return nil, err
	}
	memory, err := b.measureMemory(ctx)
	return append(rates, memory...), err
}

// claim formats a claim.
func claim(name, unit string, measured, target float64, reached bool) string {
	verdict := "ok"
	if !reached {
		verdict = "missed"
	}
	return fmt.Sprintf("claim %s measured=%.0f%s target=%.0f%s %s", name, measured, unit, target, unit, verdict)
}
