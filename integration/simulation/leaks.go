package simulation

import (
	"regexp"
	"runtime"
	"strings"
	"testing/synctest"
	"time"
)

const (
	// closes is how long a process may take to end, and closesAtOnce where no call outlasts CloseTimeout, and the broker
	// answers: what is fetched, held or not confirmed is given back. A connection that an alarm blocks is closed in 5 s,
	// and there are two.
	closes       = 2 * time.Minute
	closesAtOnce = 12 * time.Second
	// perProcess is how many goroutines a process and its connections have at most, with 20 for each call.
	perProcess = 300
	// logLines is how many lines the log has for each cause in logWindow, at most. The pause before an attempt to begin
	// again is a second, shortened at random by up to a half.
	logLines, logWindow = 20, 10 * time.Second
)

// closes is how long a process may take to end.
func (p plan) closes() time.Duration {
	switch {
	case p.shape == builder && p.mayHave(hangs): // watermill-amqp waits for its calls
		return hangsFor + closes
	case p.shape == builder || p.mayHave(halfOpen, frozen, hangs, slow, withheld) || p.mayHave(alarm) && len(p.faults) > 1:
		return closes
	}
	return closesAtOnce
}

// bubble is in the first line of a stack.
var bubble = regexp.MustCompile(`synctest bubble \d+`)

// bounded checks that there are not more and more goroutines.
func (w *world) bounded() {
	most := w.goroutines + w.plan.processes*(perProcess+10*w.plan.concurrency*len(w.plan.queues()))
	if n := runtime.NumGoroutine(); n > most {
		w.ledger.violated("", "there are %d goroutines, and %d before the run", n, w.goroutines)
	}
}

// end stops everything, and checks that no goroutine is left.
func (w *world) end() {
	for number := range w.processes {
		w.running(number).stop()
	}
	w.broker.Stop()
	time.Sleep(time.Minute)
	synctest.Wait()
	if runtime.NumGoroutine() == w.goroutines || w.plan.shape == builder { // watermill-amqp leaves some
		return
	}
	// NumGoroutine is not exact. The stacks are, and cost more. The first one is that of this goroutine.
	stacks, left := make([]byte, 1<<20), 0
	all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
	own := bubble.FindString(all[0])
	for _, stack := range all[1:] {
		if bubble.FindString(stack) == own && !strings.Contains(stack, "synctest.Test") {
			left++
			w.broker.Note("left: %s", stack)
		}
	}
	if left > 0 {
		w.ledger.violated("", "%d goroutines are left after Close", left)
	}
}
