package relay

import (
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// unproduced is what a subscription knows of messages whose handler has succeeded and whose produced messages could
// not be published. The router nacks such a message, and many Pub/Subs deliver it again at once: then it waits, each
// time longer. The place of its call is kept for 1 s, and for longer while no message succeeds: what comes next would
// fail as well.
type unproduced struct {
	calls int // at the same time, at most

	mu      sync.Mutex
	running map[string]*call // the last delivery, by UUID
	row     int              // failures since the last success
	by      map[string]waits // what waits, by UUID
}

// call is a delivery to the handler.
type call struct {
	msg     *message.Message
	own     *msgctx.Delivery
	settled bool
	pause   time.Duration // before its place is free
}

type waits struct {
	times int
	until time.Time
}

// maxUnproduced is how many messages are remembered.
const maxUnproduced = 1024

// pauseAfter is how long a message waits that has failed so often before.
func pauseAfter(times int) time.Duration { return min(longestPause<<min(times, 10), pauses.Longest) }

// begin notes a delivery.
func (u *unproduced) begin(msg *message.Message, own *msgctx.Delivery) *call {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.running == nil {
		u.running, u.by = map[string]*call{}, map[string]waits{}
	}
	c := &call{msg: msg, own: own}
	u.running[msg.UUID] = c
	return c
}

// end is called when a delivery is settled. It returns how long its place is kept.
func (u *unproduced) end(c *call) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.settle(c)
	if u.running[c.msg.UUID] == c {
		delete(u.running, c.msg.UUID)
	}
	return c.pause
}

// wait returns how long a message waits before its handler is called. The redelivery of a message can come before end.
func (u *unproduced) wait(msg *message.Message) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	if before := u.running[msg.UUID]; before != nil {
		u.settle(before)
	}
	return time.Until(u.by[msg.UUID].until)
}

func (u *unproduced) settle(c *call) {
	if c.settled || !c.own.Processed() {
		return
	}
	select {
	case <-c.msg.Acked():
		c.settled, u.row = true, 0
		delete(u.by, c.msg.UUID)
	case <-c.msg.Nacked():
		c.settled, c.pause = true, pauseAfter(u.row/u.calls)
		u.row++
		u.note(c.msg.UUID)
	default:
	}
}

func (u *unproduced) note(uuid string) {
	if uuid == "" { // other messages have none either
		return
	}
	w, known := u.by[uuid]
	if !known && len(u.by) == maxUnproduced {
		u.forget()
	}
	u.by[uuid] = waits{w.times + 1, time.Now().Add(pauseAfter(w.times))}
}

// forget makes room. Another process may have got the messages that have not come back. Where all may still come back,
// it forgets any one: that one waits shorter.
func (u *unproduced) forget() {
	now := time.Now()
	maps.DeleteFunc(u.by, func(_ string, w waits) bool { return now.Sub(w.until) > pauses.Longest })
	for uuid := range u.by {
		if len(u.by) < maxUnproduced {
			break
		}
		delete(u.by, uuid)
	}
}
