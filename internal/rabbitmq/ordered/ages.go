package ordered

import (
	"sync"
	"time"
)

// ages has when deliveries arrived, at the precision of a second.
type ages struct {
	mu   sync.Mutex
	list []age // ascending
	last uint64
}

type age struct {
	first uint64 // the delivery tag
	at    time.Time
}

func (a *ages) add(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = tag
	if n := len(a.list); n == 0 || time.Since(a.list[n-1].at) > time.Second {
		a.list = append(a.list, age{tag, time.Now()})
	}
}

// arrived returns the delivery tag of the last delivery. 0: there was none.
func (a *ages) arrived() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// of returns how old a delivery is, or a second more, and forgets those before it. It is 0 where it has not arrived.
func (a *ages) of(tag uint64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.list) > 1 && a.list[1].first <= tag {
		a.list = a.list[1:]
	}
	if tag > a.last {
		return 0
	}
	return time.Since(a.list[0].at)
}
