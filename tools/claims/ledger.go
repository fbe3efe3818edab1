package claims

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// Patience is how long there may be no call: then messages are lost.
const Patience = 2 * time.Minute

const idDigits = 12

// ID is the identity of a message, in the form of a UUID.
func ID(message int) string { return fmt.Sprintf("00000000-0000-4000-8000-%0*d", idDigits, message) }

// numberOf returns the number of a message, or -1 if its identity is foreign.
func numberOf(id string) int {
	message, err := strconv.Atoi(id[max(len(id)-idDigits, 0):])
	if err != nil {
		return -1
	}
	return message
}

// Always is the same delay for all messages.
func Always(d time.Duration) func(message int) time.Duration {
	return func(int) time.Duration { return d }
}

// A Ledger counts what becomes of each message, by its identity: when it has failed, when it is back, when it is
// finished. A message fails at most once.
type Ledger struct {
	Fails func(message int) bool // whether the first call for a message fails. It is set before the first call
	Late  []time.Duration        // how much longer than its delay each message was away

	delay    func(message int) time.Duration         // how long a message waits after its failure
	least    func(delay time.Duration) time.Duration // how long it is away at least
	start    chan struct{}                           // closed when the calls of Handle may begin
	waits    func()                                  // closes reached
	reached  chan struct{}                           // closed when a call of Handle waits for the start
	finished chan struct{}                           // closed when no message is left
	began    time.Time

	mu                                  sync.Mutex
	calls, left, early, twice, stranger int
	failed                              []time.Duration // when a message has failed, after began. 0: it has not
	done                                []bool          // whether it is finished
	last                                time.Duration   // when the last message was finished
}

// NewLedger is for so many messages, of which each fails once, and is then away for its delay.
func NewLedger(
	messages int, delay func(message int) time.Duration, least func(delay time.Duration) time.Duration,
) *Ledger {
	l := &Ledger{
		Fails: func(int) bool { return true }, delay: delay, least: least, start: make(chan struct{}),
		reached: make(chan struct{}), finished: make(chan struct{}), began: time.Now().Add(-1), left: messages,
		failed: make([]time.Duration, messages), done: make([]bool, messages),
	}
	l.waits = sync.OnceFunc(func() { close(l.reached) })
	return l
}

// message returns the number of a message, or -1 if it is none of the ledger's.
func (l *Ledger) message(id string) int {
	if message := numberOf(id); message >= 0 && message < len(l.done) {
		return message
	}
	l.stranger++
	return -1
}

// Fail is called when a message begins to wait. It reports whether the message is one of the ledger's.
func (l *Ledger) Fail(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	message := l.message(id)
	if message >= 0 {
		l.failed[message] = time.Since(l.began)
	}
	return message >= 0
}

// Handle is Call in a Race.
func (l *Ledger) Handle(id string, failures int) (fails bool) {
	l.waits()
	<-l.start
	_, fails = l.Call(id, failures)
	return fails
}

// Call is called for each delivery of a message that has failed so often. It reports whether the message has to fail
// now, and how long it then waits.
func (l *Ledger) Call(id string, failures int) (delay time.Duration, fails bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	now, message := time.Since(l.began), l.message(id)
	if message < 0 {
		return 0, false
	}
	delay, fails = l.delay(message), l.Fails(message)
	switch {
	case failures > 1:
		l.stranger++
	case failures == 0 && fails:
		if l.failed[message] > 0 { // a duplicate
			l.twice++
		} else {
			l.failed[message] = now
		}
		return delay, true
	case l.done[message]:
		l.twice++
	default:
		if fails {
			away := now - l.failed[message]
			if l.failed[message] == 0 || away < l.least(delay) {
				l.early++
			}
			l.Late = append(l.Late, away-delay)
		}
		l.done[message], l.last = true, now
		if l.left--; l.left == 0 {
			close(l.finished)
		}
	}
	return 0, false
}

// Back is how many messages are finished.
func (l *Ledger) Back() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done) - l.left
}

// Wait waits until no message is left, or until there is no progress, and returns what Check returns.
func (l *Ledger) Wait() error {
	for calls := -1; ; {
		select {
		case <-l.finished:
			return l.Check()
		case <-time.After(Patience):
		}
		l.mu.Lock()
		progress := calls != l.calls
		calls = l.calls
		l.mu.Unlock()
		if !progress {
			return l.Check()
		}
	}
}

// Check reports what must never happen. A duplicate is preferred to a loss, and only printed.
func (l *Ledger) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.twice > 0 {
		fmt.Printf("%d deliveries more than necessary\n", l.twice)
	}
	var faults []error
	for i, name := range []string{"lost", "early", "foreign"} {
		if count := []int{l.left, l.early, l.stranger}[i]; count != 0 {
			faults = append(faults, fmt.Errorf("%s=%d of %d messages", name, count, len(l.done)))
		}
	}
	return errors.Join(faults...)
}

// Race lets the calls of Handle begin when the first one waits, and returns how long it took until the last message was
// finished. The file of a CPU profile may have no name.
func (l *Ledger) Race(profile string) (took time.Duration, err error) {
	select {
	case <-l.reached:
	case <-time.After(Patience):
		return 0, fmt.Errorf("no message was delivered within %v", Patience)
	}
	end, err := Profile(profile)
	if err != nil {
		return 0, err
	}
	opened := time.Since(l.began)
	close(l.start)
	err = errors.Join(l.Wait(), end())
	return l.last - opened, err
}
