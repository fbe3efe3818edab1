package orders

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// journal records, outside of the handler, what became of each order. It prints a row for each failure.
type journal struct {
	out     io.Writer
	changed chan struct{} // has an element after an order was billed or died

	mu      sync.Mutex
	numbers map[string]int // order numbers by message UUID
	billed  map[string]int // how often, by message UUID
	dead    map[string]int // how often it was dead-lettered
	letters []retry.Event
	late    time.Duration // the largest lateness
}

func newJournal(orders []*message.Message, out io.Writer) *journal {
	j := &journal{
		out: out, changed: make(chan struct{}, 1),
		numbers: map[string]int{}, billed: map[string]int{}, dead: map[string]int{},
	}
	for i, msg := range orders {
		j.numbers[msg.UUID] = i + 1
	}
	return j
}

// watch prints how long a message has waited when it arrives, and records whether it was billed.
func (j *journal) watch(h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if record, retried := retry.ReadRecord(msg.Metadata); retried {
			j.back(msg.UUID, record, time.Now())
		}
		err := h(msg)
		if err == nil {
			j.mu.Lock()
			j.billed[msg.UUID]++
			j.mu.Unlock()
			j.change()
		}
		return err
	}
}

func (j *journal) back(uuid string, record retry.Record, now time.Time) {
	wanted, measured := record.DueAt.Sub(record.LastFailedAt), now.Sub(record.LastFailedAt)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.late = max(j.late, measured-wanted)
	j.row(j.numbers[uuid], record.Failures, wanted, measured.Round(time.Millisecond), record.Reason)
}

func (j *journal) change() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// Event is the middleware's Observe.
func (j *journal) Event(e retry.Event) {
	if e.Outcome != retry.DeadLettered {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dead[e.MessageUUID]++
	j.letters = append(j.letters, e)
	j.change()
	why := fmt.Sprintf("dead-lettered, %s: %s", e.Record.DeadReason, e.Record.Reason)
	j.row(j.numbers[e.MessageUUID], e.Record.Failures, "-", "-", why)
}

func (j *journal) row(order, failure, wanted, measured, why any) {
	_, _ = fmt.Fprintf(j.out, "%5v  %7v  %8v  %8v  %v\n", order, failure, wanted, measured, why)
}

func (j *journal) progress() {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = fmt.Fprintf(j.out, "... %d of %d orders billed, %d dead\n", len(j.billed), len(j.numbers), len(j.dead))
}

// open returns how many orders are neither billed nor a dead letter.
func (j *journal) open() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.summary().lost
}

// summary counts orders by UUID, not messages, so that a lost one and a duplicate do not cancel each other out.
type summary struct {
	published, processed, dead int
	lost                       int // neither billed nor dead
	duplicates                 int // outcomes after an order's first one, and outcomes of unknown orders
	late                       time.Duration
}

func (j *journal) summary() summary {
	s := summary{published: len(j.numbers), late: j.late}
	for id := range j.numbers {
		if j.billed[id] > 0 {
			s.processed++
		}
		if j.dead[id] > 0 {
			s.dead++
		}
		if j.billed[id]+j.dead[id] == 0 {
			s.lost++
		}
	}
	for _, outcomes := range []map[string]int{j.billed, j.dead} {
		for _, n := range outcomes {
			s.duplicates += n
		}
	}
	s.duplicates -= s.published - s.lost
	return s
}

func (s summary) String() string {
	return fmt.Sprintf("published=%d processed=%d dead=%d lost=%d duplicates=%d max_lateness=%dms",
		s.published, s.processed, s.dead, s.lost, s.duplicates, s.late.Round(time.Millisecond).Milliseconds())
}
