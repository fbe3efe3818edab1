package orders

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/retry"
)

// journal records, outside of the handler, how often each order was billed and how long each failure waited.
type journal struct {
	mu       sync.Mutex
	numbers  map[string]int // order numbers by message UUID
	timeline *timeline
	billed   map[string]int // how often, by message UUID
	dead     map[string]int
	waits    map[failure]*wait
	late     lateness
	open     int           // orders that are not settled
	settled  chan struct{} // closed when every order is billed or dead-lettered
}

// failure is one failure of one message: its first, its second, ...
type failure struct {
	uuid   string
	number int
}

// wait is filled by the hook and by the handler: on a short tier the message can be back before the hook has run.
type wait struct {
	wanted   time.Duration
	failedAt time.Time // zero until the hook has run
	backAt   time.Time // zero until the message is back
	why      string
}

func newJournal(orders []*message.Message, t *timeline) *journal {
	j := &journal{
		numbers: map[string]int{}, timeline: t, open: len(orders), settled: make(chan struct{}),
		billed: map[string]int{}, dead: map[string]int{}, waits: map[failure]*wait{},
	}
	for i, msg := range orders {
		j.numbers[msg.UUID] = i + 1
	}
	return j
}

// observe records when a message arrives and whether it was billed.
func (j *journal) observe(h message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		now := time.Now()
		if record, retried := retry.ReadRecord(msg.Metadata); retried {
			j.back(failure{msg.UUID, record.Failures}, now)
		}
		err := h(msg)
		if err == nil {
			j.settle(j.billed, msg.UUID)
		}
		return err
	}
}

// outcome is the middleware's Observe.
func (j *journal) outcome(e retry.Event) {
	switch e.Outcome {
	case retry.Retried:
		j.retried(e)
	case retry.DeadLettered:
		j.deadLettered(e)
	}
}

func (j *journal) retried(e retry.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := failure{e.MessageUUID, e.Record.Failures}
	w := j.wait(f)
	w.wanted, w.failedAt, w.why = e.Delay, e.Record.DueAt.Add(-e.Delay), e.Err.Error()
	j.show(f, w)
}

func (j *journal) back(f failure, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.wait(f)
	if !w.backAt.IsZero() {
		return // delivered twice: the summary counts duplicates
	}
	w.backAt = now
	j.show(f, w)
}

func (j *journal) wait(f failure) *wait {
	if j.waits[f] == nil {
		j.waits[f] = &wait{}
	}
	return j.waits[f]
}

func (j *journal) show(f failure, w *wait) {
	if !w.failedAt.IsZero() && !w.backAt.IsZero() {
		measured := w.backAt.Sub(w.failedAt)
		j.late.add(measured - w.wanted)
		j.timeline.waited(j.numbers[f.uuid], f.number, w.wanted, measured, w.why)
	}
	j.timeline.status(j.progress)
}

func (j *journal) deadLettered(e retry.Event) {
	j.mu.Lock()
	j.timeline.deadLettered(j.numbers[e.MessageUUID], e.Record.Failures, string(e.Record.DeadReason), e.Err.Error())
	j.mu.Unlock()
	j.settle(j.dead, e.MessageUUID)
}

// deadCount returns how many orders were dead-lettered.
func (j *journal) deadCount() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.dead)
}

func (j *journal) settle(outcomes map[string]int, uuid string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	first := j.billed[uuid]+j.dead[uuid] == 0
	outcomes[uuid]++
	j.timeline.status(j.progress)
	if first {
		j.open--
		if j.open == 0 {
			close(j.settled)
		}
	}
}

// unsettled returns an error that lists the orders that are neither billed nor dead-lettered.
func (j *journal) unsettled() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var numbers []int
	for uuid, number := range j.numbers {
		if j.billed[uuid]+j.dead[uuid] == 0 {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return fmt.Errorf("%s; not settled: orders %s", j.progress(), list(numbers))
}

func list(numbers []int) string {
	const limit = 20
	text := strings.Trim(fmt.Sprint(numbers[:min(len(numbers), limit)]), "[]")
	if more := len(numbers) - limit; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// tick refreshes the status line.
func (j *journal) tick() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.timeline.tick(j.progress)
}

func (j *journal) progress() string {
	waiting, next := 0, time.Time{}
	for _, w := range j.waits {
		if w.failedAt.IsZero() || !w.backAt.IsZero() {
			continue
		}
		waiting++
		if due := w.failedAt.Add(w.wanted); next.IsZero() || due.Before(next) {
			next = due
		}
	}
	text := fmt.Sprintf("%d of %d orders billed, %d waiting on retry tiers, %d dead",
		len(j.billed), len(j.numbers), waiting, len(j.dead))
	if in := time.Until(next).Round(time.Second); waiting > 0 && in > 0 {
		text += fmt.Sprintf("; the next is due in %v", in)
	}
	return text
}
