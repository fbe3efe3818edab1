package subscriber

import (
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
	"github.com/tieredretry/watermill-retry/retry"
)

// keptFor is how long it is remembered how a message is to be delivered again that has gone back to its queue.
const keptFor = time.Hour

// keeping is how a message is to be delivered again, and where it is. It outlives the message's session: what comes
// back to this process goes on with its failures and its due time.
type keeping struct {
	msgctx.Again          // its Metadata is nil where the message has that of its delivery
	at           *arrival // nil: it has gone back to its queue
	left         time.Time
	since        time.Time // since when it is blocked; zero: it never was
	skipped      bool      // by an operator, until it is a dead letter
	outlived     error     // the failure of a call that has outlived its delivery; nil: there is none
}

// isOld reports whether a message went back to its queue so long ago that it is forgotten: another process may have
// handled it. The decision of an operator is not forgotten.
func (k *keeping) isOld() bool { return k.at == nil && !k.skipped && time.Since(k.left) > keptFor }

// retain is called when a handler's message is acked for which the backend has set Again. The message stays
// unacknowledged at the broker, and its key stays taken.
func (s *subscription) retain(a *arrival, again *msgctx.Again) {
	a.place.Leave()
	a.end(errSettled)
	s.receiver.ask(func() {
		r := s.receiver
		kept := &keeping{Again: *again, at: a}
		if a.id == 0 {
			a.id = r.identify(a)
		}
		r.kept[a.id], a.kept = kept, kept
		if a.session.gone() {
			r.leave(a)
			return
		}
		r.hold(a)
	})
}

// outlive keeps the failure of a call that has outlived its delivery: the next delivery fails with it. That one may be
// here already, and waits for its key.
func (s *subscription) outlive(a *arrival, err error) {
	kept, id := &keeping{}, a.id
	if a.kept != nil {
		kept.Metadata, kept.skipped = a.kept.Metadata, a.kept.skipped
	}
	if id == 0 {
		id = s.receiver.identify(a)
	}
	kept.left, kept.outlived = time.Now(), err
	s.receiver.ask(func() { s.receiver.kept[id] = kept })
}

// identify returns the same number for each delivery of a message. Copies of it with one UUID, in other partitions or
// with other keys, have others.
func (r *receiver) identify(a *arrival) uint64 {
	var h maphash.Hash
	h.SetSeed(r.nacks.seed)
	maphash.WriteComparable(&h, a.session.number)
	maphash.WriteComparable(&h, r.nacks.identify(a))
	_, _ = h.WriteString(a.key.of)
	_, _ = h.Write(a.delivery.Body)
	return h.Sum64()
}

// carry gives a message what it was kept with: its failure record, the decision of an operator, and the failure of a
// call that it has outlived.
func (a *arrival) carry() {
	for _, key := range retry.RecordKeys() {
		if value, found := a.kept.Metadata[key]; found {
			a.msg.Metadata.Set(key, value)
		} else if a.kept.Metadata != nil {
			delete(a.msg.Metadata, key)
		}
	}
	if a.of != nil {
		a.of.Kept = maps.Clone(a.msg.Metadata)
		a.of.GivenUp, a.of.Outlived = a.kept.skipped, a.kept.outlived
	}
}

// take makes an arrival go on where its earlier delivery to this process was.
func (r *receiver) take(a *arrival) {
	if len(r.kept) == 0 || !a.delivery.Redelivered || a.err != nil {
		return
	}
	id := r.identify(a)
	kept := r.kept[id]
	switch {
	case kept == nil:
	case kept.isOld():
		delete(r.kept, id)
	case kept.at == nil || kept.at.session != a.session:
		kept.at, a.kept, a.id = a, kept, id
		a.carry()
	case kept.at.session == a.session &&
		redelivery.Count(a.delivery.Headers) > redelivery.Count(kept.at.delivery.Headers):
		a.session.leave(errDeposed)
	}
}

// first is called when a message is the first one of its key. It is handed out, or held until it is due. One of the
// intake is moved, and takes no place: while the broker confirms nothing, the handlers go on.
func (r *receiver) first(a *arrival) {
	if a.session.mover != nil && a.err == nil && !r.closed && !a.session.gone() {
		r.backlog.Add(-1)
		r.workers.Go(func() { r.move(a) })
		return
	}
	if a.kept != nil && (a.kept.Blocked || time.Until(a.kept.Due) > 0) {
		r.backlog.Add(-1)
		r.hold(a)
		return
	}
	r.line.add(a)
}

// hold keeps the first message of a key until it is due, or until an operator decides.
func (r *receiver) hold(a *arrival) {
	r.held[a] = true
	a.session.partition.held.Add(1)
	if a.key.of != "" {
		r.heads[a.key] = a
		for next := r.waiting[a.key].first; next != nil; next = next.behind {
			a.count++
		}
		a.session.partition.behind.Add(int64(a.count))
	}
	if a.kept.Blocked {
		r.block(a, true)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(time.Until(a.kept.Due), func() {
		r.ask(func() {
			if r.held[a] && a.timer == timer {
				r.again(a)
			}
		})
	})
	a.timer = timer
}

// unhold ends a hold.
func (r *receiver) unhold(a *arrival) {
	delete(r.held, a)
	delete(r.heads, a.key)
	a.session.partition.held.Add(-1)
	a.session.partition.behind.Add(-int64(a.count))
	a.count = 0
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	if a.kept.Blocked {
		r.block(a, false)
	}
}

// again hands a message out that was held.
func (r *receiver) again(a *arrival) {
	r.unhold(a)
	a.kept.Blocked, a.kept.Due = false, time.Time{}
	a.err = errExited // unless Unmarshal returns
	defer func() {
		if a.err != nil {
			a.msg = nil
		}
		r.prepare(a)
		if a.err == nil {
			a.carry()
		}
		r.backlog.Add(1)
		r.line.add(a)
	}()
	r.unmarshal(a) // the handler may have changed the message
}

// leave forgets where a message is whose session ends, and lets the next one of its key follow: it is of another
// session, or leaves, too.
func (r *receiver) leave(a *arrival) {
	if a.kept != nil {
		a.kept.at, a.kept.left = nil, time.Now()
	}
	r.settled(a)
	r.releaseOf(a)
}

// leaveAll makes the held messages of a session go back, and forgets what went back long ago.
func (r *receiver) leaveAll(of *session) {
	for a := range r.held {
		if of == nil || a.session == of {
			r.unhold(a)
			r.leave(a)
		}
	}
	for id, kept := range r.kept {
		if kept.isOld() {
			delete(r.kept, id)
		}
	}
}

// forget is called when a message that was kept is settled. One that was not acked comes back.
func (r *receiver) forget(a *arrival) {
	id, kept, acked := a.id, a.kept, a.acked
	decided := a.of != nil && a.of.Outlived == nil // about the failure of an earlier call
	r.ask(func() {
		switch {
		case !acked && kept.at == a:
			kept.at, kept.left = nil, time.Now()
			if decided {
				kept.outlived = nil
			}
		case acked && r.kept[id] == kept:
			delete(r.kept, id)
		}
	})
}

// block adds a message to those of its partition that are blocked, or removes it. Health reads the list.
func (r *receiver) block(a *arrival, blocked bool) {
	p := a.session.partition
	list := slices.DeleteFunc(slices.Clone(*p.blocked.Load()), func(b blockedArrival) bool { return b.arrival == a })
	if blocked {
		if a.kept.since.IsZero() {
			a.kept.since = time.Now()
			r.logger.Info("A key is blocked", watermill.LogFields{"key": a.key.of, "message_uuid": a.msg.UUID,
				"partition": p.queue})
		}
		record, _ := retry.ReadRecord(a.kept.Metadata)
		list = append(list, blockedArrival{a, command.Blocked{
			Key: a.key.of, MessageUUID: a.msg.UUID, Since: a.kept.since, DeadReason: record.DeadReason, Reason: record.Reason,
		}})
	}
	p.blocked.Store(&list)
}

type blockedArrival struct {
	arrival *arrival // for comparison only
	command.Blocked
}

// status has what the partition does.
func (p *partition) status() command.Partition {
	status := command.Partition{Queue: p.queue, Waiting: int(p.held.Load()), Behind: int(p.behind.Load())}
	if n := p.current.Load(); n != nil {
		status.Delivered, status.Oldest = n.arrived.Load(), n.waited()
	}
	for _, b := range *p.blocked.Load() {
		status.Blocked = append(status.Blocked, b.Blocked)
	}
	return status
}

// addTo adds the partition to the health of its subscription.
func (p *partition) addTo(h *retry.SubscriptionHealth) {
	h.OrderWaiting = max(h.OrderWaiting, int(p.held.Load()+p.behind.Load()))
	for _, b := range *p.blocked.Load() {
		h.Blocked = append(h.Blocked, b.Key)
	}
}

// Ordered returns what the handlers with partitions do that consume a work queue.
func (c *Connection) Ordered(queue string) (all []command.Handler) {
	for _, s := range c.ordered(queue) {
		h := command.Handler{Name: s.config.Name}
		for _, p := range s.partitions {
			h.Partitions = append(h.Partitions, p.status())
		}
		all = append(all, h)
	}
	return all
}

// Decide ends the block of the messages with a key, on all subscriptions of the connection that consume a work queue.
// It returns how many there were. A message that is skipped becomes a dead letter; the others are handled again, as if
// they had not failed.
func (c *Connection) Decide(queue, key string, skip bool) (count int) {
	for _, s := range c.ordered(queue) {
		done := make(chan int, 1)
		if s.receiver.ask(func() {
			defer close(done)
			done <- s.receiver.decide(key, skip)
		}) {
			select {
			case n := <-done:
				count += n
			case <-s.givenUp: // Unmarshal has not returned
			case <-s.receiver.over:
			}
		}
	}
	return count
}

func (c *Connection) ordered(queue string) (all []*subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		if len(s.partitions) > 0 && s.queue == queue {
			all = append(all, s)
		}
	}
	return all
}

func (r *receiver) decide(key string, skip bool) (count int) {
	for a := range r.held {
		if !a.kept.Blocked || a.key.of != key {
			continue
		}
		if !skip {
			for _, key := range retry.RecordKeys() {
				delete(a.kept.Metadata, key)
			}
		}
		a.kept.since, a.kept.skipped = time.Time{}, skip
		r.again(a)
		count++
	}
	return count
}
