package ordered

import (
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/redelivery"
	"github.com/tieredretry/watermill-retry/retry"
)

// keptFor is how long it is remembered how a message is to be delivered again that has gone back to its queue.
const keptFor = time.Hour

// keeping is how a message is to be delivered again, and where it is. It outlives the message's session: what comes
// back to this process goes on with its failures and its due time.
type keeping struct {
	msgctx.Again                   // its Metadata is nil where the message has that of its delivery
	id           uint64            // the id of the message
	at           *dispatch.Arrival // nil: it has gone back to its queue
	left         time.Time
	timer        *time.Timer // while it is held until it is due
	since        time.Time   // since when it is blocked; zero: it never was
	skipped      bool        // whether an operator has skipped it. It stays until it is a dead letter
	outlived     error       // the failure of a call that has outlived its delivery; nil: there is none
}

// keptOf returns how an arrival was kept, also in an earlier session. Nil: it was not.
func keptOf(a *dispatch.Arrival) *keeping {
	kept, _ := a.Mark.(*keeping)
	return kept
}

// waits reports whether a message is not to be handed out yet.
func (k *keeping) waits() bool { return k.Blocked || time.Until(k.Due) > 0 }

// isOld reports whether a message went back to its queue so long ago that it is forgotten: another process may have
// handled it. The decision of an operator is not forgotten.
func (k *keeping) isOld() bool { return k.at == nil && !k.skipped && time.Since(k.left) > keptFor }

// retain is called when a handler's message is acked for which the backend has set Again. The message stays
// unacknowledged at the broker, and its key stays taken.
func (n *session) retain(a *dispatch.Arrival) {
	n.of.Leave(a)
	n.of.Tell(func(a *dispatch.Arrival) {
		kept := &keeping{Again: *a.Of.Again, id: n.of.idOf(a), at: a}
		n.of.kept[kept.id], a.Mark = kept, kept
		if n.Gone().Err() != nil {
			n.GiveBack(a)
			return
		}
		n.of.hold(a)
	}, a)
}

// outlive keeps the failure of a call that has outlived its delivery: the next delivery fails with it. That one may be
// here already, and waits for its key.
func (n *session) outlive(a *dispatch.Arrival, err error) {
	kept := &keeping{id: n.of.idOf(a), left: time.Now(), outlived: err}
	if was := keptOf(a); was != nil {
		kept.Metadata, kept.skipped = was.Metadata, was.skipped
	}
	n.of.Tell(func(*dispatch.Arrival) { n.of.kept[kept.id] = kept }, nil)
}

// idOf returns the same number for each delivery of a message. Copies of it with one UUID, with other keys or payloads,
// have others.
func (p *partition) idOf(a *dispatch.Arrival) uint64 {
	if kept := keptOf(a); kept != nil {
		return kept.id
	}
	var h maphash.Hash
	h.SetSeed(seed)
	maphash.WriteComparable(&h, p.Identify(a))
	_, _ = h.WriteString(a.Key)
	_, _ = h.Write(a.Delivery.Body)
	return h.Sum64()
}

var seed = maphash.MakeSeed()

// carry gives a message what it was kept with: its failure record, the decision of an operator, and the failure of a
// call that it has outlived.
func carry(a *dispatch.Arrival) {
	kept := keptOf(a)
	for _, key := range retry.RecordKeys() {
		if value, found := kept.Metadata[key]; found {
			a.Msg.Metadata.Set(key, value)
		} else if kept.Metadata != nil {
			delete(a.Msg.Metadata, key)
		}
	}
	a.Of.Kept = maps.Clone(a.Msg.Metadata)
	a.Of.GivenUp, a.Of.Outlived = kept.skipped, kept.outlived
}

// take makes an arrival go on where its earlier delivery to this process was.
func (p *partition) take(a *dispatch.Arrival) {
	if len(p.kept) == 0 || !a.Delivery.Redelivered || a.Err != nil {
		return
	}
	kept := p.kept[p.idOf(a)]
	switch {
	case kept == nil:
	case kept.isOld():
		delete(p.kept, kept.id)
	case kept.at == nil || kept.at.Source != a.Source:
		kept.at, a.Mark = a, kept
		carry(a)
	case redelivery.Count(a.Delivery.Headers) > redelivery.Count(kept.at.Delivery.Headers):
		sessionOf(a).Leave(errDeposed)
	}
}

// hold keeps the first message of a key until it is due, or until an operator decides.
func (p *partition) hold(a *dispatch.Arrival) {
	kept := keptOf(a)
	p.waiting[a] = true
	p.count(a, 1)
	if kept.Blocked {
		p.block(a, true)
		return
	}
	kept.timer = time.AfterFunc(time.Until(kept.Due), func() {
		p.Tell(func(a *dispatch.Arrival) {
			if p.waiting[a] && keptOf(a) == kept { // not by the clock, which may have been set back
				p.again(a)
			}
		}, a)
	})
}

// unhold ends a hold.
func (p *partition) unhold(a *dispatch.Arrival) {
	kept := keptOf(a)
	delete(p.waiting, a)
	p.count(a, -1)
	if kept.timer != nil {
		kept.timer.Stop()
	}
	if kept.Blocked {
		p.block(a, false)
	}
}

// count counts a message that is held, and those behind it.
func (p *partition) count(a *dispatch.Arrival, one int64) {
	_, behind := p.keys.Behind(a.Key)
	p.held.Add(one)
	p.behind.Add(one * int64(behind))
}

// again hands a message out that was held.
func (p *partition) again(a *dispatch.Arrival) {
	p.unhold(a)
	kept := keptOf(a)
	kept.Blocked, kept.Due = false, time.Time{}
	defer func() { // also where Unmarshal does not return
		sessionOf(a).prepare(a)
		if a.Err == nil {
			carry(a)
		}
		p.Add(a)
	}()
	p.Unmarshal(a) // the handler may have changed the message
}

// giveBack makes the messages of a session go back that are not handed out, and forgets what went back long ago.
func (p *partition) giveBack(n *session) {
	var held []*dispatch.Arrival
	for a := range p.waiting {
		if a.Source == dispatch.Source(n) {
			p.unhold(a)
			held = append(held, a)
		}
	}
	p.GiveBack(n, p.keys, held...)
	for id, kept := range p.kept {
		if kept.isOld() {
			delete(p.kept, id)
		}
	}
}

// forget is called when a message that was kept is settled. One that was not acked comes back.
func (p *partition) forget(a *dispatch.Arrival, acked bool) {
	kept := keptOf(a)
	switch {
	case !acked && kept.at == a:
		kept.at, kept.left = nil, time.Now()
		if a.Of.Outlived == nil { // it was decided about the failure of an earlier call
			kept.outlived = nil
		}
	case acked && p.kept[kept.id] == kept:
		delete(p.kept, kept.id)
	}
}

// block adds a message to those of its partition that are blocked, or removes it. Health reads the list.
func (p *partition) block(a *dispatch.Arrival, blocked bool) {
	kept := keptOf(a)
	list := slices.DeleteFunc(slices.Clone(*p.blocked.Load()), func(b blockedArrival) bool { return b.arrival == a })
	if blocked {
		if kept.since.IsZero() {
			kept.since = time.Now()
			p.Logger.Info("A key is blocked", watermill.LogFields{"key": a.Key, "message_uuid": a.Msg.UUID})
		}
		record, _ := retry.ReadRecord(kept.Metadata)
		list = append(list, blockedArrival{a, command.Blocked{
			Key: a.Key, MessageUUID: a.Msg.UUID, Since: kept.since, DeadReason: record.DeadReason, Reason: record.Reason,
		}})
	}
	p.blocked.Store(&list)
}

type blockedArrival struct {
	arrival *dispatch.Arrival // for comparison only
	command.Blocked
}

// decide carries out the decision of an operator about the blocked messages with a key, and returns how many there
// were.
func (p *partition) decide(key string, skip bool) (count int) {
	for a := range p.waiting {
		kept := keptOf(a)
		if !kept.Blocked || a.Key != key {
			continue
		}
		if !skip {
			for _, key := range retry.RecordKeys() {
				delete(kept.Metadata, key)
			}
		}
		kept.since, kept.skipped = time.Time{}, skip
		p.again(a)
		count++
	}
	return count
}

// status has what the partition does.
func (p *partition) status() command.Partition {
	status := command.Partition{Queue: p.Queue, Waiting: int(p.held.Load()), Behind: int(p.behind.Load())}
	if n := p.current.Load(); n != nil {
		status.Delivered, status.Oldest = n.ages.arrived(), n.waited()
	}
	for _, b := range *p.blocked.Load() {
		status.Blocked = append(status.Blocked, b.Blocked)
	}
	return status
}

// AddTo implements subscriber.Kind.
func (p *partition) AddTo(h *retry.SubscriptionHealth) {
	if h.Blocked == nil {
		h.Blocked = []string{}
	}
	h.Prefetch = p.of.order.Prefetch
	h.OrderWaiting = max(h.OrderWaiting, int(p.held.Load()+p.behind.Load()))
	for _, b := range *p.blocked.Load() {
		h.Blocked = append(h.Blocked, b.Key)
	}
}
