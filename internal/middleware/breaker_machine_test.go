package middleware

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/retry"
)

// handlerModel is a machine with a queue that is never empty. Some messages keep their place for ever: in the handler, in a worker before
// the handler is called, or in no worker, as those that wait for their key do.
type handlerModel struct {
	*machine
	random  *rand.Rand
	now     time.Time
	workers []worker
	hung    int // workers that stay busy
	waiting int // messages that stay in no worker
	taken   int // places since the last pause
	pauses  int // so far
}

type worker struct {
	until  time.Time // zero: idle
	called bool
	ticket ticket
	pause  int // the message was delivered after as many pauses
}

const forever = 1000 * time.Hour

func newHandlerModel(seed uint64) *handlerModel {
	h := &handlerModel{random: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(0, 0)}
	concurrency := []int{0, 1, 2, 3, 4, 16}[h.random.IntN(6)]
	h.workers = make([]worker, max(concurrency, 5))
	if concurrency > 0 {
		h.workers = h.workers[:concurrency]
	}
	var config *retry.Breaker
	if h.random.IntN(4) > 0 {
		config = &retry.Breaker{
			Least: 1 + h.random.IntN(20), Ratio: 0.1 + 0.9*h.random.Float64(),
			Pause: h.upTo(2 * time.Second), MaxPause: 2*time.Second + h.upTo(20*time.Second), Window: h.upTo(10 * time.Second),
		}
	}
	h.machine = newMachine(handlerSubject, config, concurrency, h.now)
	return h
}

func (h *handlerModel) upTo(d time.Duration) time.Duration {
	return time.Duration(1 + h.random.Int64N(int64(d)))
}

// step lets 100 ms pass.
func (h *handlerModel) step(down bool) {
	h.now = h.now.Add(100 * time.Millisecond)
	before := h.ticket
	if due := h.due(); !due.IsZero() && !h.now.Before(due) {
		h.tick(h.now, h.taken)
	}
	for i := range h.workers {
		h.work(&h.workers[i], down)
	}
	if h.ticket != before && h.stage == paused {
		h.pauses++
		h.taken = 0
	}
}

func (h *handlerModel) work(w *worker, down bool) {
	if !w.until.IsZero() && !h.now.Before(w.until) {
		h.end(w, down)
		*w = worker{}
	}
	limit := h.limit()
	if !w.until.IsZero() || h.stage == paused || h.taken >= limit && h.stage != going && (h.concurrency == 0 || limit < h.concurrency) {
		return
	}
	h.taken++
	if h.waiting < 10 && h.random.IntN(50) == 0 {
		h.waiting++
		return
	}
	*w = worker{until: h.now.Add(h.upTo(300 * time.Millisecond)), called: h.random.IntN(10) > 0, pause: h.pauses}
	if h.hung < len(h.workers)-1 && h.random.IntN(50) == 0 {
		h.hung++
		w.until = h.now.Add(forever)
	}
	if w.ticket = h.ticket; w.called && w.ticket.limited() {
		h.called(h.now)
	}
}

func (h *handlerModel) end(w *worker, down bool) {
	if w.pause == h.pauses {
		h.taken--
	}
	if !w.called {
		return
	}
	v := good
	if down {
		v = []verdict{noSign, good, bad, bad, bad, bad, bad, bad}[h.random.IntN(8)]
	}
	if down && h.random.IntN(10) == 0 {
		h.rule(w.ticket, h.upTo(30*time.Second), "rule", h.now)
	} else if h.counts || w.ticket.limited() {
		h.outcome(w.ticket, v, h.now)
	}
	h.returned(w.ticket, h.now)
}

// TestALimitAlwaysComesBack whatever hangs, and wherever: the handler goes on without a limit once what it needs is there again.
func TestALimitAlwaysComesBack(t *testing.T) {
	t.Parallel()
	paused := 0
	for seed := range uint64(100) {
		h := newHandlerModel(seed)
		down := h.now.Add(h.upTo(2 * time.Minute))
		for end := h.now.Add(30 * time.Minute); h.now.Before(end); {
			h.step(h.now.Before(down))
			if h.stage != going {
				require.LessOrEqual(t, h.extra, max(h.taken, h.flight+h.outside), "seed %d", seed)
			}
		}
		require.Equal(t, going, h.stage, "seed %d: limit %d, concurrency %d, hung %d, waiting %d", seed, h.limit(), h.concurrency, h.hung, h.waiting)
		require.Equal(t, gate.None, h.limit())
		if h.pauses > 0 {
			paused++
		}
	}
	assert.Greater(t, paused, 75, "the test pauses handlers")
}

func TestWindowCountsTheLastOutcomes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	for _, least := range []int{1, 3, 20, 100} {
		t.Run(fmt.Sprint(least), func(t *testing.T) {
			w := newWindow(least, time.Second, 1+random.IntN(200))
			var all []timed
			for range 5000 {
				now := timed{failed: random.IntN(2) == 0}
				if len(all) > 0 {
					now.at = all[len(all)-1].at + time.Duration(random.IntN(20))*time.Millisecond*time.Duration(random.IntN(2))
				}
				all = append(all, now)
				w.add(now.at, now.failed)
				count, failures := 0, 0
				for _, past := range all[max(len(all)-5*least, 0):] {
					if now.at-past.at <= time.Second {
						count++
						if past.failed {
							failures++
						}
					}
				}
				require.Equal(t, [2]int{count, failures}, [2]int{w.count, w.failures})
			}
		})
	}
}
