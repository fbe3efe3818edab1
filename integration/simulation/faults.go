package simulation

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/tieredretry/watermill-retry/integration/simulation/model"
)

// fault is something that goes wrong once.
type fault struct {
	kind string
	at   time.Duration // since the start; 0: at an event
	// event counts the methods of clients, each before and after it is handled. It is 0 for a fault with a time.
	event int
	lasts time.Duration
	pick  int // chooses the connection, process or queue
}

func (f fault) String() string {
	if f.event > 0 {
		return fmt.Sprintf("%s at event %d", f.kind, f.event)
	}
	return fmt.Sprintf("%s at %v for %v", f.kind, f.at.Round(time.Millisecond), f.lasts.Round(time.Millisecond))
}

// The kinds of faults.
const (
	cutAt     = "cut at an event"
	resetAt   = "reset at an event"
	cutAfter  = "cut at a publish or ack"
	nackAt    = "publish nacked"
	cutBoth   = "all connections of a process are lost"
	halfOpen  = "half-open connection"
	restart   = "node restart"
	alarm     = "alarm"
	kill      = "process killed"
	deploy    = "process stopped and started"
	unbind    = "return binding removed"
	noTier    = "tier deleted"        // while it is empty
	replace   = "work queue replaced" // while it is empty
	noReturn  = "return exchange deleted"
	noDeclare = "declares answer 541"
	timeout   = "pause and resume"
	full      = "queues full"
	noPart    = "partition unbound"
)

var kinds = []string{
	cutAt, cutAt, resetAt, resetAt, cutBoth, cutBoth, halfOpen, restart, alarm, kill, deploy, unbind, noTier, replace,
	noReturn, noDeclare, timeout, cutAfter, cutAfter, cutAfter, nackAt, nackAt, full, noPart,
}

func (p plan) drawFault(r *rand.Rand) fault {
	f := fault{
		kind: kinds[r.IntN(len(kinds))], at: time.Duration(r.Int64N(int64(activity))),
		lasts: time.Duration(r.Int64N(int64(10 * time.Second))), pick: r.IntN(1000),
	}
	switch f.kind {
	case cutAt, resetAt, cutAfter, nackAt:
		f.event, f.at, f.lasts = 1+r.IntN(60*p.processes+14*p.messages), 0, 0
	}
	return f
}

// atEvent is the Fault of the model. It counts the events.
func (w *world) atEvent(e model.Event) model.Fault {
	n := int(w.events.Add(1))
	if !w.started.Load() { // Connect must succeed
		return model.None
	}
	for i, f := range w.plan.faults {
		if f.event == 0 || f.event > n || !f.fits(e) || w.over[i].Swap(true) {
			continue
		}
		w.disturbed(0)
		switch f.kind {
		case nackAt:
			return model.Nack
		case cutAt, cutAfter:
			return model.Cut
		default:
			return model.Reset
		}
	}
	return model.None
}

// fits reports whether a fault can happen at an event.
func (f fault) fits(e model.Event) bool {
	switch f.kind {
	case nackAt:
		return e.Method == "basic.publish" && !e.After
	case cutAfter:
		return e.Method == "basic.publish" || e.Method == "basic.ack"
	default:
		return true
	}
}

// inject makes a fault that has a time.
func (w *world) inject(f fault) {
	time.Sleep(f.at)
	w.broker.Note("fault: %s", f.kind)
	w.disturbed(f.lasts)
	p := w.processes[f.pick%len(w.processes)]
	switch f.kind {
	case cutBoth:
		p.disturb(model.Reset)
	case halfOpen:
		w.disturbed(halfOpenFor)
		p.disturbOne(f.pick, model.Silent)
	case restart:
		w.broker.Stop()
		time.Sleep(f.lasts)
		w.broker.Start()
	case alarm:
		w.broker.Block(true)
		time.Sleep(f.lasts)
		w.broker.Block(false)
	case kill, deploy:
		if p.ending.Swap(true) {
			break
		}
		if f.kind == deploy {
			p.stop()
			w.start(p.number)
			break
		}
		p.kill()
		time.Sleep(f.lasts)
		w.start(p.number)
	case unbind:
		w.broker.Unbind(w.work(), "retry.return")
	case noTier:
		w.broker.DeleteQueue(w.tier(f.pick), true)
	case replace:
		w.broker.ReplaceQueue(w.work(), true)
	case full:
		pattern := []string{`\.retry\.`, `\.order\.\d`, `\.dead$`}[f.pick%3]
		w.broker.SetPolicy("full", model.Policy{Pattern: regexp.MustCompile(pattern),
			Definition: map[string]any{"max-length": int64(f.pick % 2), "overflow": "reject-publish"}})
		time.Sleep(f.lasts)
		w.broker.SetPolicy("full", model.Policy{})
	case noPart:
		w.broker.Unbind(fmt.Sprint(topic, ".order.", f.pick%max(w.plan.partitions, 1)), topic+".order")
	case noReturn:
		w.broker.DeleteExchange("retry.return")
	case noDeclare:
		w.broker.Refuse(func(string) uint16 { return 541 })
		p.disturb(model.Cut)
		time.Sleep(f.lasts)
		w.broker.Refuse(nil)
	case timeout:
		if err := p.connection.Pause(handlerName); err == nil {
			time.Sleep(f.lasts)
			_ = p.connection.Resume(handlerName)
		}
	}
	w.disturbed(0)
}
