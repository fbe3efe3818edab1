package claims

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Patience is how long there may be no call: then messages are lost.
const Patience = 2 * time.Minute

// A Tally counts the calls for messages, and what must never happen. A ledger has one. Its lock guards the ledger, too.
type Tally struct {
	sync.Mutex
	Messages, Calls, Left, Early, Twice, Foreign int

	done chan struct{} // closed when no message is left
}

// NewTally is for so many messages.
func NewTally(messages int) *Tally {
	return &Tally{Messages: messages, Left: messages, done: make(chan struct{})}
}

// Finish counts a message that is finished. The lock is held.
func (t *Tally) Finish() {
	if t.Left--; t.Left == 0 {
		close(t.done)
	}
}

// Wait waits until no message is left, or until there is no progress: Check tells which. That a process of the app has
// ended is an error. idle is how long none may be called at first, while all wait.
func (t *Tally) Wait(idle time.Duration, ended <-chan error) error {
	for calls := -1; ; {
		select {
		case <-t.done:
			return nil
		case err := <-ended:
			return fmt.Errorf("a process of the app has ended: %w", err)
		case <-time.After(idle + Patience):
		}
		t.Lock()
		progress := calls != t.Calls
		calls = t.Calls
		t.Unlock()
		if !progress {
			return nil
		}
	}
}

// Check reports what must never happen. A duplicate is preferred to a loss, and only counted.
func (t *Tally) Check() error {
	t.Lock()
	defer t.Unlock()
	var faults []error
	for i, name := range []string{"lost", "early", "foreign"} {
		if count := []int{t.Left, t.Early, t.Foreign}[i]; count != 0 {
			faults = append(faults, fmt.Errorf("%s=%d of %d messages", name, count, t.Messages))
		}
	}
	return errors.Join(faults...)
}

// Back is how many messages are finished.
func (t *Tally) Back() int {
	t.Lock()
	defer t.Unlock()
	return t.Messages - t.Left
}
