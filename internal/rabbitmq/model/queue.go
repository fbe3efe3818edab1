package model

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// message is a message in a queue, or on its way to some.
type message struct {
	amqp091.Publishing
	exchange, key string
	copies        []any // further routing keys: the header CC, as the client published it

	arrival     uint64    // its place in the queue
	expires     time.Time // zero: never
	again       time.Time // when it is forwarded again
	died        string    // why it is forwarded
	redelivered bool
	front       bool  // it came back to a quorum queue, before those that wait
	returned    int64 // how often it came back and counted towards the delivery limit
	acquired    int64 // how often it came back
}

// queue is a queue. The Broker's mu guards it.
type queue struct {
	broker                         *Broker
	name                           string
	durable, exclusive, autoDelete bool
	owner                          *connection // the connection that has an exclusive queue for itself
	arguments                      amqp091.Table
	consumers                      []*consumer
	turns                          []*consumer  // the consumers that may take the next message, in their order
	refuses                        map[any]bool // the publishers whose messages a quorum queue with a limit refuses
	ready                          []*message   // in their order
	leaving                        []*message   // dead, until a queue has taken them: at-least-once
	head                           *time.Timer
	forwards                       *time.Timer
	published                      int // messages by clients
	gone                           bool
	moving, more                   bool // moveOn runs; it has to run once more
}

func newQueue(b *Broker, name string, durable bool, arguments amqp091.Table) *queue {
	return &queue{broker: b, name: name, durable: durable, arguments: arguments, refuses: map[any]bool{}}
}

func (q *queue) quorum() bool { return q.arguments["x-queue-type"] == "quorum" }

// single reports whether the queue has one consumer that is active.
func (q *queue) single() bool { return q.arguments["x-single-active-consumer"] == true }

// set is what a policy sets.
func (q *queue) set(name string) any {
	_, p := q.broker.policy(q)
	return p.Definition[name]
}

// text returns an argument, or what a policy sets. Both have a value: the policy of a quorum queue wins where it is not
// about the address of dead letters.
func (q *queue) text(name string) (string, bool) {
	own, has := q.arguments["x-"+name].(string)
	if set, is := q.set(name).(string); is && (!has || q.quorum() && name != "dead-letter-exchange") {
		return set, true
	}
	return own, has
}

// number returns an argument, or what a policy sets: the lower one of both.
func (q *queue) number(name string) (int64, bool) {
	own, has := integer(q.arguments["x-"+name])
	other, set := integer(q.set(name))
	if set && (!has || other < own) {
		return other, true
	}
	return own, has
}

func integer(value any) (int64, bool) {
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true
	default:
		return 0, false
	}
}

// atLeastOnce reports whether a dead message stays until another queue has taken it.
func (q *queue) atLeastOnce() bool {
	strategy, _ := q.text("dead-letter-strategy")
	overflow, _ := q.text("overflow")
	return q.quorum() && strategy == "at-least-once" && overflow == "reject-publish"
}

// enqueue reports whether the queue has taken the message.
func (q *queue) enqueue(m *message, from any) bool {
	if q.full(m, from) {
		q.broker.note("%s refuses %s: it is full", q.name, m.Body)
		if overflow, _ := q.text("overflow"); overflow == "reject-publish-dlx" {
			q.deadLetter(m, "maxlen")
		}
		return false
	}
	q.broker.arrivals++
	m.arrival = q.broker.arrivals
	m.expires = q.expiry(m)
	q.broker.note("%s gets %s", q.name, m.Body)
	q.insert(m)
	return true
}

// size is how many messages a queue has or may have, and their bytes.
type size struct{ messages, bytes int64 }

// has is what counts for the limits, with messages that come.
func (q *queue) has(coming ...*message) (all size) {
	for _, waiting := range [][]*message{q.ready, q.leaving, coming} {
		for _, m := range waiting {
			all.messages++
			all.bytes += q.bytes(m)
		}
	}
	return all
}

// bytes is what a message counts for a limit of bytes. The broker keeps deaths apart from the headers.
func (q *queue) bytes(m *message) int64 {
	p := m.Publishing
	if !q.quorum() || !q.broker.does(countsProperties) {
		return int64(len(p.Body))
	}
	p.Headers = maps.Clone(p.Headers)
	maps.DeleteFunc(p.Headers, func(key string, _ any) bool {
		return key == "x-death" || strings.HasPrefix(key, "x-first-death-") || strings.HasPrefix(key, "x-last-death-")
	})
	return int64(len(writeHeader(p)) - beforeProperties + len(p.Body))
}

// limits returns what the queue may have, and whether it has a limit.
func (q *queue) limits() (most size, limited bool) {
	const none = 1 << 40
	messages, counted := q.number("max-length")
	if !counted {
		messages = none
	}
	bytes, sized := q.number("max-length-bytes")
	if !sized {
		bytes = none
	}
	return size{messages, bytes}, counted || sized
}

// over reports whether a queue has more than it may.
func (s size) over(most size) bool { return s.messages > most.messages || s.bytes > most.bytes }

// full reports whether the queue refuses a message. A quorum queue refuses one publisher after the other: it learns of
// them with their first message, tells all of them when it has more than its limits, and tells them again when it has
// four fifths of them.
func (q *queue) full(m *message, from any) bool {
	most, limited := q.limits()
	limited = limited && !q.dropsHead()
	if !q.quorum() {
		return limited && q.has(m).over(most)
	}
	if _, known := q.refuses[from]; !known && from != nil {
		q.refuses[from] = limited && q.has().over(most)
	}
	return q.refuses[from]
}

// tellPublishers tells the publishers of a quorum queue whether it is full.
func (q *queue) tellPublishers() {
	most, limited := q.limits()
	if !limited || q.dropsHead() {
		return // whom it refuses, it still refuses
	}
	has, low := q.has(), size{most.messages - (most.messages+4)/5, most.bytes - (most.bytes+4)/5}
	for from := range q.refuses {
		switch {
		case has.over(most):
			q.refuses[from] = true
		case !has.over(low):
			q.refuses[from] = false
		}
	}
}

// dropsHead reports whether the first messages of a queue go that has too many.
func (q *queue) dropsHead() bool {
	overflow, _ := q.text("overflow")
	return !strings.HasPrefix(overflow, "reject-publish")
}

// dropHead removes the first messages of a queue that has too many.
func (q *queue) dropHead() {
	for most, limited := q.limits(); limited && len(q.ready) > 0 && q.has().over(most); {
		q.deadLetter(q.take(), "maxlen")
	}
}

// purge removes what no consumer has, and returns how much.
func (q *queue) purge() int {
	purged := len(q.ready)
	q.ready = nil
	q.tellPublishers()
	return purged
}

// expiry is when a message expires that arrives now.
func (q *queue) expiry(m *message) time.Time {
	ttl, has := q.number("message-ttl")
	if own, err := strconv.ParseInt(m.Expiration, 10, 64); err == nil && (!has || own < ttl) {
		ttl, has = own, true
	}
	if !has {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(ttl) * time.Millisecond)
}

// rank is the place of a message among the others: what came back to a quorum queue is first, then priorities.
func (q *queue) rank(m *message) int {
	switch {
	case !q.quorum():
		most, _ := q.number("max-priority")
		return int(min(int64(m.Priority), most))
	case m.front:
		return 2
	case q.broker.does(highFirst) && m.Priority > 4:
		return 1
	default:
		return 0
	}
}

// take removes the message that leaves next.
func (q *queue) take() *message {
	m := q.ready[0]
	q.ready = slices.Delete(q.ready, 0, 1)
	return m
}

// insert puts a message in its place, which one that comes back still has.
func (q *queue) insert(m *message) {
	at, _ := slices.BinarySearchFunc(q.ready, m, func(a, b *message) int {
		return cmp.Or(cmp.Compare(q.rank(b), q.rank(a)), cmp.Compare(a.arrival, b.arrival))
	})
	q.ready = slices.Insert(q.ready, at, m)
}

// stop ends the timers.
func (q *queue) stop() {
	for _, timer := range []*time.Timer{q.head, q.forwards} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// moveOn removes what has expired, and delivers the rest. A dead letter can bring a queue back here.
func (q *queue) moveOn() {
	q.more = true
	if q.moving {
		return
	}
	q.moving = true
	for q.more && !q.gone && !q.broker.down {
		q.more = false
		q.expire()
		q.forward()
		q.deliver()
		if q.dropsHead() {
			q.dropHead()
		}
		q.tellPublishers()
		var next time.Time
		if len(q.ready) > 0 {
			next = q.ready[0].expires
		}
		q.wake(&q.head, next)
	}
	q.moving = false
}

// wake makes a timer let the queue move on after a time, if there is one.
func (q *queue) wake(timer **time.Timer, after time.Time) {
	if *timer != nil {
		(*timer).Stop()
	}
	if !after.IsZero() {
		*timer = time.AfterFunc(time.Until(after)+1, func() { q.broker.locked(q.moveOn) })
	}
}

// expire removes the messages that leave next and have expired.
func (q *queue) expire() {
	for len(q.ready) > 0 {
		at := q.ready[0].expires
		if at.IsZero() || !time.Now().After(at) {
			return
		}
		q.deadLetter(q.take(), "expired")
	}
}

// deliveryLimit returns how often a message may come back to a quorum queue, and whether there is a limit.
func (q *queue) deliveryLimit() (limit int64, has bool) {
	limit, has = q.number("delivery-limit")
	if q.broker.does(limitMinusOneDrops) {
		return limit, has
	}
	if set, is := integer(q.set("delivery-limit")); is && limit < 0 {
		own, _ := integer(q.arguments["x-delivery-limit"])
		limit = max(set, own)
	}
	if !has && q.broker.does(limitOf20) {
		return deliveryLimit, true
	}
	return limit, has && limit >= 0
}

// giveBack puts messages back that consumers had. They count towards the delivery limit, or do not. What a client has
// given back to a quorum queue without a limit is the last there, else it is before those that wait.
func (q *queue) giveBack(deliveries []delivery, counted, byClient bool) {
	if q.gone {
		return
	}
	limit, has := q.deliveryLimit()
	for _, d := range deliveries {
		m := d.message
		m.redelivered = true
		if !q.quorum() {
			q.insert(m)
			continue
		}
		q.broker.arrivals++
		m.arrival = q.broker.arrivals // what comes back to a quorum queue is in the order in which it came back
		m.acquired++
		m.front = !byClient || has
		if counted {
			m.returned++
		}
		if has && m.returned > limit {
			if q.broker.does(limitAddsPlace) && d.to != nil && d.to.prefetch > 0 {
				d.to.prefetch++
			}
			q.deadLetter(m, "delivery_limit")
			continue
		}
		q.insert(m)
	}
	q.moveOn()
}
