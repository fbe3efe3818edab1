package subscriber

import (
	"sync"
	"time"
)

// A failure is the last error and its time.
type failure struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

func (f *failure) set(err error) {
	f.mu.Lock()
	f.err, f.at = err, time.Now()
	f.mu.Unlock()
}

func (f *failure) get() (at time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at, f.err
}
