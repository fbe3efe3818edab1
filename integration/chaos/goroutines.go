package main

import (
	"runtime"
	"strings"
	"time"
)

// goroutines returns the stacks of all goroutines except those of the proxy and of the test.
func goroutines() []string {
	buffer := make([]byte, 1<<22)
	var ours []string
	for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if !strings.Contains(stack, "/toxiproxy/") && !strings.Contains(stack, "/tomb") && !strings.Contains(stack,
			"os/signal.") {
			ours = append(ours, stack)
		}
	}
	return ours
}

// steady returns the number of goroutines after those of the last request to the broker have ended.
func steady() int {
	least := len(goroutines())
	for range 5 {
		time.Sleep(50 * time.Millisecond)
		least = min(least, len(goroutines()))
	}
	return least
}

// settled waits until at most target goroutines are left, and returns the stacks of those that are left.
func settled(target int) []string {
	left := goroutines()
	for range 100 {
		if len(left) <= target {
			break
		}
		time.Sleep(100 * time.Millisecond)
		left = goroutines()
	}
	return left
}
