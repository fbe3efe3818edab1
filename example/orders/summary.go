package orders

import (
	"fmt"
	"time"
)

// summary counts orders by UUID, not messages, so that a lost one and a duplicate do not cancel each other out.
type summary struct {
	published   int
	processed   int // billed
	dead        int // read from the dead-letter queue
	lost        int // neither
	duplicates  int // outcomes after an order's first one, and outcomes of unknown orders
	maxLateness time.Duration
}

// summarize counts the outcomes. billed and dead contain how often each UUID was billed and dead-lettered.
func summarize(published []string, billed, dead map[string]int, late lateness) summary {
	s := summary{published: len(published), maxLateness: late.largest}
	known := map[string]bool{}
	for _, id := range published {
		known[id] = true
		if billed[id] > 0 {
			s.processed++
		}
		if dead[id] > 0 {
			s.dead++
		}
		if outcomes := billed[id] + dead[id]; outcomes == 0 {
			s.lost++
		} else {
			s.duplicates += outcomes - 1
		}
	}
	for _, outcomes := range []map[string]int{billed, dead} {
		for id, n := range outcomes {
			if !known[id] {
				s.duplicates += n
			}
		}
	}
	return s
}

// complete reports whether every order was either billed or dead-lettered.
func (s summary) complete() bool { return s.lost == 0 && s.published == s.processed+s.dead }

func (s summary) String() string {
	return fmt.Sprintf("published=%d processed=%d dead=%d lost=%d duplicates=%d max_lateness=%dms",
		s.published, s.processed, s.dead, s.lost, s.duplicates, s.maxLateness.Round(time.Millisecond).Milliseconds())
}

// lateness is the largest difference between a measured and a wanted delay. It can be negative, because RabbitMQ can expire a
// message up to a millisecond early.
type lateness struct {
	largest time.Duration
	any     bool
}

func (l *lateness) add(late time.Duration) {
	if !l.any || late > l.largest {
		l.largest, l.any = late, true
	}
}
