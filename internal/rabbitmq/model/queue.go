package model

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// message is a message in a queue, or on its way to some.
type message struct {
	properties
	exchange, key string
	copies        []any // further routing keys: the header CC, as the client published it
	body          []byte

	arrival     uint64    // its place in the queue
	expires     time.Time // zero: never
	again       time.Time // when it is forwarded again
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
	owner                          *connection // of an exclusive queue
	arguments                      amqp091.Table
	consumers                      []*consumer
	turns                          []*consumer  // those that may take the next message, in their order
	refuses                        map[any]bool // by who publishes to a quorum queue with a limit
	ready                          []*message   // in their order
	leaving                        []*message   // expired, until a queue has taken them: at-least-once
	head                           *time.Timer
	forwards                       *time.Timer
	gone                           bool
	moving, more                   bool // moveOn runs; it has to run once more
}

func newQueue(b *Broker, name string, durable bool, arguments amqp091.Table) *queue {
	return &queue{broker: b, name: name, durable: durable, arguments: arguments, refuses: map[any]bool{}}
}

func (q *queue) quorum() bool { return q.arguments["x-queue-type"] == "quorum" }

// text returns an argument, or what a policy sets. Both have a value: the policy of a quorum queue wins where it is not
// about the address of dead letters.
func (q *queue) text(name string) (string, bool) {
	own, has := q.arguments["x-"+name].(string)
	if set, is := q.broker.policy(q, name).(string); is && (!has || q.quorum() && name != "dead-letter-exchange") {
		return set, true
	}
	return own, has
}

// number returns an argument, or what a policy sets: the lower one of both.
func (q *queue) number(name string) (int64, bool) {
	own, has := integer(q.arguments["x-"+name])
	other, set := integer(q.broker.policy(q, name))
	switch {
	case has && set:
		return min(own, other), true
	case set:
		return other, true
	default:
		return own, has
	}
}

func integer(value any) (int64, bool) {
	switch v := value.(type) {
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case byte:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	}
	return 0, false
}

// atLeastOnce reports whether an expired message stays until another queue has taken it.
func (q *queue) atLeastOnce() bool {
	strategy, _ := q.text("dead-letter-strategy")
	overflow, _ := q.text("overflow")
	return q.quorum() && strategy == "at-least-once" && overflow == "reject-publish"
}

// enqueue reports whether the queue has taken the message.
func (q *queue) enqueue(m *message, from any) bool {
	if q.full(from) {
		q.broker.note("%s refuses %s: it is full", q.name, m.body)
		if overflow, _ := q.text("overflow"); overflow == "reject-publish-dlx" {
			q.deadLetter(m, "maxlen")
		}
		return false
	}
	q.broker.arrivals++
	m.arrival = q.broker.arrivals
	m.expires = q.expiry(m)
	q.broker.note("%s gets %s", q.name, m.body)
	q.insert(m)
	return true
}

// full reports whether the queue refuses a message. A quorum queue refuses one publisher after the other: it learns of
// them with their first message, tells all of them when it has more messages than its limit, and tells them again when
// it has four fifths of it.
func (q *queue) full(from any) bool {
	most, limited := q.number("max-length")
	limited = limited && !q.dropsHead()
	if !q.quorum() {
		return limited && int64(len(q.ready)) >= most
	}
	if _, known := q.refuses[from]; !known && from != nil {
		q.refuses[from] = limited && int64(len(q.ready)+len(q.leaving)) > most
	}
	return q.refuses[from]
}

// tellPublishers tells the publishers of a quorum queue whether it is full.
func (q *queue) tellPublishers() {
	most, limited := q.number("max-length")
	if !limited || q.dropsHead() {
		return // whom it refuses, it still refuses
	}
	has := int64(len(q.ready) + len(q.leaving))
	for from := range q.refuses {
		switch {
		case has > most:
			q.refuses[from] = true
		case has <= most*4/5:
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
	for most, limited := q.number("max-length"); limited && int64(len(q.ready)) > most; {
		q.deadLetter(q.take(), "maxlen")
	}
}

// expiry is when a message expires that arrives now.
func (q *queue) expiry(m *message) time.Time {
	ttl, has := q.number("message-ttl")
	if own, err := strconv.ParseInt(m.expiration(), 10, 64); err == nil && (!has || own < ttl) {
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
		return int(min(m.priority(), most))
	case m.front:
		return 2
	case q.broker.does(highFirst) && m.priority() > 4:
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
	for _, timer := range []**time.Timer{&q.head, &q.forwards} {
		if *timer != nil {
			(*timer).Stop()
			*timer = nil
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
		q.step()
	}
	q.moving = false
}

func (q *queue) step() {
	q.expire()
	if q.dropsHead() {
		q.dropHead()
	}
	q.forward()
	q.deliver()
	q.tellPublishers()
	if q.head != nil {
		q.head.Stop()
	}
	if len(q.ready) > 0 && !q.ready[0].expires.IsZero() {
		q.head = time.AfterFunc(time.Until(q.ready[0].expires)+1, q.locked(q.moveOn))
	}
}

// expire removes the messages that leave next and have expired.
func (q *queue) expire() {
	for len(q.ready) > 0 {
		at := q.ready[0].expires
		if at.IsZero() || !time.Now().After(at) {
			return
		}
		if m := q.take(); q.atLeastOnce() {
			q.leaving = append(q.leaving, m)
		} else {
			q.deadLetter(m, "expired")
		}
	}
}

// locked returns a function for a timer.
func (q *queue) locked(do func()) func() {
	return func() {
		q.broker.mu.Lock()
		defer q.broker.mu.Unlock()
		if !q.gone && !q.broker.down {
			do()
		}
	}
}

// forward dead-letters messages that must reach a queue. Those that do not are tried again later, and the queue
// forwards only so many at the same time.
func (q *queue) forward() {
	now := time.Now()
	var next time.Time
	for i, tried := 0, 0; i < len(q.leaving) && tried < forwardedAtOnce; tried++ {
		m := q.leaving[i]
		if now.Before(m.again) || !q.forwarded(m) {
			if !now.Before(m.again) {
				m.again = now.Add(forwardAgain)
			}
			if next.IsZero() || m.again.Before(next) {
				next = m.again
			}
			i++
			continue
		}
		q.leaving = slices.Delete(q.leaving, i, i+1)
	}
	if q.forwards != nil {
		q.forwards.Stop()
	}
	if !next.IsZero() {
		q.forwards = time.AfterFunc(next.Sub(now), q.locked(q.moveOn))
	}
}

// forwarded reports whether all queues have taken a message that is dead-lettered, and whether there was one.
func (q *queue) forwarded(m *message) bool {
	copied, has := q.letter(m, "expired")
	if !has {
		return true
	}
	to := q.targets(copied)
	if took, refused := copied.give(to, q); took == 0 && len(q.broker.route(copied)) == len(to) || refused {
		q.broker.note("%s keeps %s: no queue takes it", q.name, m.body)
		return false
	}
	return true
}

// deadLetter dead-letters a message without waiting for a queue.
func (q *queue) deadLetter(m *message, reason string) {
	copied, has := q.letter(m, reason)
	if !has {
		q.broker.note("%s drops %s: %s", q.name, m.body, reason)
		return
	}
	took, _ := copied.give(q.targets(copied), nil)
	q.broker.note("%s dead-letters %s: %s, to %d queues", q.name, m.body, reason, took)
}

// letter returns the copy of a message that is dead-lettered, and reports whether the queue has an exchange for it.
func (q *queue) letter(m *message, reason string) (*message, bool) {
	exchange, has := q.text("dead-letter-exchange")
	if !has {
		return nil, false
	}
	copied := *m
	copied.exchange, copied.redelivered, copied.returned, copied.acquired, copied.front = exchange, false, 0, 0, false
	headers := amqp091.Table{}
	for key, value := range m.headers() {
		if key != "x-delivery-count" && key != "x-acquired-count" {
			headers[key] = value
		}
	}
	if key, fixed := q.text("dead-letter-routing-key"); fixed {
		copied.key, copied.copies = key, nil
		if !q.broker.does(keepsCC) {
			delete(headers, "CC")
		}
	}
	q.recordDeath(headers, m, reason)
	copied.properties[itsHeaders], copied.properties[itsExpiration] = headers, nil
	return &copied, true
}

// recordDeath writes the headers of a dead letter.
func (q *queue) recordDeath(headers amqp091.Table, m *message, reason string) {
	deaths, _ := headers["x-death"].([]any)
	entry := amqp091.Table{"count": int64(0), "exchange": m.exchange, "queue": q.name, "reason": reason,
		"routing-keys": append([]any{m.key}, m.copies...), "time": time.Now().Truncate(time.Second)}
	if m.expiration() != "" {
		entry["original-expiration"] = m.expiration()
	}
	rest := []any{}
	for _, each := range deaths {
		if old, is := each.(amqp091.Table); is && old["queue"] == q.name && old["reason"] == reason {
			entry = amqp091.Table{}
			for key, value := range old {
				entry[key] = value
			}
			continue
		}
		rest = append(rest, each)
	}
	count, _ := integer(entry["count"])
	entry["count"] = count + 1
	headers["x-death"] = append([]any{entry}, rest...)
	names := []string{"first"}
	if q.broker.does(lastDeath) {
		names = append(names, "last")
	}
	for _, name := range names {
		if _, has := headers["x-first-death-queue"]; has && name == "first" {
			continue
		}
		for key, value := range map[string]string{"exchange": m.exchange, "queue": q.name, "reason": reason} {
			headers["x-"+name+"-death-"+key] = value
		}
	}
}

// targets are the queues that a dead letter goes to: not those in which it has died before, if no client has rejected
// it since.
func (q *queue) targets(copied *message) []*queue {
	deaths, _ := copied.headers()["x-death"].([]any)
	return slices.DeleteFunc(q.broker.route(copied), func(to *queue) bool {
		for _, each := range deaths {
			death, _ := each.(amqp091.Table)
			if death["reason"] == "rejected" {
				return false
			}
			if death["queue"] == to.name {
				return true
			}
		}
		return false
	})
}

// giveBack puts messages back that consumers had. They count towards the delivery limit, or do not. What a client has
// given back to a quorum queue without a limit is the last there, else it is before those that wait.
func (q *queue) giveBack(deliveries []delivery, counted, byClient bool) {
	if q.gone {
		return
	}
	limit, has := q.number("delivery-limit")
	if !has && q.broker.does(limitOf20) {
		limit, has = deliveryLimit, true
	}
	has = has && (limit >= 0 || q.broker.does(limitMinusOneDrops))
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
