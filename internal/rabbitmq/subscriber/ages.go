package subscriber

import (
	"sync"
	"time"
)

// ages has when deliveries arrived, at the precision of a second.
type ages struct {
	mu   sync.Mutex
	list []age // ascending
}

type age struct {
	first uint64 // the delivery tag
	at    time.Time
}

func (a *ages) add(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.list); n == 0 || time.Since(a.list[n-1].at) > time.Second {
		a.list = append(a.list, age{tag, time.Now()})
	}
}

// of returns how old a delivery is, or a second more, and forgets those before it.
func (a *ages) of(tag uint64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.list) > 1 && a.list[1].first <= tag {
		a.list = a.list[1:]
	}
	if len(a.list) == 0 {
		return 0
	}
	return time.Since(a.list[0].at)
}

// waited is for how long the oldest delivery has not been acknowledged.
func (n *session) waited() time.Duration {
	low, arrived := n.settler.low.Load(), n.arrived.Load()
	age := n.ages.of(low) // also where all are acknowledged: it forgets
	if low > arrived {
		return 0
	}
	return age
}
