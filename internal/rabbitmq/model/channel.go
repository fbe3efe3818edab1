package model

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// channel is a channel of a connection. The Broker's mu guards it.
type channel struct {
	connection *connection
	id         uint16
	deliveries map[uint64]delivery // the deliveries that are not settled, by their tags
	consumers  map[string]*consumer
	tags       uint64
	prefetch   int // the prefetch of consumers that come
	limit      int // the limit of the whole channel; 0: none
	timeout    *time.Timer
	closed     bool

	confirms   bool
	published  uint64
	publishing *message // its content is not complete
	mandatory  bool
	size       uint64
}

func (ch *channel) send(m method, fields func(w *writer)) { ch.connection.send(ch.id, m, fields) }

// close gives everything back.
func (ch *channel) close() {
	if ch.end() {
		ch.reject(ch.settled(0, true), true, true, false)
	}
}

// end ends the consumers, and reports whether the channel was open.
func (ch *channel) end() bool {
	if ch.closed {
		return false
	}
	ch.closed = true
	if ch.timeout != nil {
		ch.timeout.Stop()
	}
	for _, tag := range sorted(ch.consumers) {
		ch.consumers[tag].remove()
	}
	return true
}

// fail closes the channel with a reason.
func (ch *channel) fail(code uint16, reason string, by method) {
	ch.connection.broker.note("connection %d, channel %d: error %d %s", ch.connection.number, ch.id, code, reason)
	ch.close()
	ch.send("channel.close", closing(code, reason, by))
}

func (ch *channel) method(m method, r reader) {
	switch m {
	case "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind":
		ch.exchangeMethod(m, r)
	case "queue.declare", "queue.bind", "queue.purge", "queue.delete", "queue.unbind":
		ch.queueMethod(m, r)
	case "basic.qos":
		r.long()
		count, global := int(r.short()), r.octet()&1 != 0
		if global {
			ch.limit = count
		} else {
			ch.prefetch = count
		}
		ch.ok(m, false, nil)
		ch.moveOn(nil)
	case "basic.consume":
		ch.consume(r)
	case "basic.cancel":
		tag, quiet := r.text(), r.octet()&1 != 0
		if c := ch.consumers[tag]; c != nil {
			c.remove()
			c.queue.moveOn()
		}
		ch.ok(m, quiet, func(w *writer) { w.text(tag) })
	case "basic.get":
		ch.get(r)
	case "basic.ack", "basic.nack", "basic.reject":
		ch.settle(m, r)
	case "confirm.select":
		ch.confirms = true
		ch.ok(m, r.octet()&1 != 0, nil)
	default:
		ch.connection.fail(amqp091.NotImplemented, "NOT_IMPLEMENTED", m)
	}
}

// ok answers a method.
func (ch *channel) ok(m method, quiet bool, fields func(w *writer)) {
	if !quiet && !ch.closed {
		ch.send(m+"-ok", fields)
	}
}

func (ch *channel) consume(r reader) {
	const m = "basic.consume"
	b := ch.connection.broker
	r.short()
	name, tag, bits, arguments := r.text(), r.text(), r.octet(), r.table()
	q := b.queues[name]
	c := &consumer{channel: ch, queue: q, tag: tag, automatic: bits&2 != 0, exclusive: bits&4 != 0, prefetch: ch.prefetch}
	c.priority, _ = integer(arguments["x-priority"])
	switch {
	case q == nil:
		ch.notFound("queue", name, m)
		return
	case q.lockedFor(ch):
		ch.locked(name, m)
		return
	case ch.consumers[tag] != nil:
		ch.connection.fail(amqp091.NotAllowed, "NOT_ALLOWED - attempt to reuse consumer tag '"+tag+"'", m)
		return
	case !q.quorum() && (c.exclusive && (q.single() || len(q.consumers) > 0) ||
		len(q.consumers) > 0 && q.consumers[0].exclusive):
		ch.denied(m, "queue '%s' in vhost '/' in exclusive use", name)
		return
	case tag == "":
		b.names++
		c.tag = "amq.ctag-" + strconv.Itoa(b.names)
	}
	ch.consumers[c.tag] = c
	q.consumers = append(q.consumers, c)
	q.enterTurns(c)
	b.note("connection %d consumes %s", ch.connection.number, name)
	ch.ok(m, bits&8 != 0, func(w *writer) { w.text(c.tag) })
	q.moveOn()
}

func (ch *channel) get(r reader) {
	const method = "basic.get"
	r.short()
	name, automatic := r.text(), r.octet()&1 != 0
	q := ch.connection.broker.queues[name]
	switch {
	case q == nil:
		ch.notFound("queue", name, method)
	case q.lockedFor(ch):
		ch.locked(name, method)
	case q.quorum() && q.single():
		ch.fail(amqp091.ResourceLocked, fmt.Sprintf("RESOURCE_LOCKED - cannot obtain access to locked queue '%s' in "+
			"vhost '/'. basic.get operations are not supported by", name), method)
	case len(q.ready) == 0:
		ch.send("basic.get-empty", func(w *writer) { w.text("") })
	default:
		m := q.take()
		tag := ch.hand(delivery{m, q, nil, time.Now()}, automatic)
		ch.send("basic.get-ok", func(w *writer) {
			w.number(8, tag).bit(m.redelivered).text(m.exchange).text(m.key).long(uint32(len(q.ready)))
		})
		ch.content(q, m, true)
		q.moveOn()
	}
}

func (ch *channel) settle(m method, r reader) {
	tag, bits := r.number(8), r.octet()
	multiple, requeue := bits&1 != 0 && m != "basic.reject", bits&2 != 0
	if m == "basic.reject" {
		requeue = bits&1 != 0
	}
	if _, has := ch.deliveries[tag]; !has && (!multiple || tag != 0) {
		ch.refuse(m, "unknown delivery tag %d", tag)
		return
	}
	done := ch.settled(tag, multiple)
	if m != "basic.ack" {
		ch.reject(done, requeue, m == "basic.reject" || ch.connection.broker.does(nackCounts), true)
		return
	}
	for _, d := range done {
		ch.connection.broker.note("connection %d acks %s of %s", ch.connection.number, d.message.Body, d.queue.name)
	}
	ch.moveOn(done)
}

func (ch *channel) startPublish(r reader) {
	r.short()
	ch.publishing = &message{exchange: r.text(), key: r.text()}
	ch.mandatory = r.octet()&1 != 0
	ch.connection.publishes = true
	ch.connection.block()
}

func (ch *channel) publishIfComplete() {
	if uint64(len(ch.publishing.Body)) < ch.size {
		return
	}
	m := ch.publishing
	ch.publishing = nil
	if !ch.closed && !ch.connection.closing {
		ch.connection.around("basic.publish", func(f Fault) { ch.publish(m, f == Nack) })
	}
}

// publish routes a message, unless it is refused, and confirms it after a while.
func (ch *channel) publish(m *message, refused bool) {
	const method = "basic.publish"
	b := ch.connection.broker
	ch.published++
	number := ch.published
	_, err := strconv.ParseUint(m.Expiration, 10, 32)
	e := b.exchanges[m.exchange]
	switch size, largest := len(m.Body), b.largestMessage(); {
	case size > largest:
		ch.refuse(method, "message size %d is larger than configured max size %d", size, largest)
		return
	case e == nil:
		ch.notFound("exchange", m.exchange, method)
		return
	case e.internal:
		ch.denied(method, "cannot publish to internal exchange '%s' in vhost '/'", m.exchange)
		return
	case m.Expiration != "" && err != nil:
		ch.refuse(method, "invalid expiration '%s': no_integer", m.Expiration)
		return
	}
	took, held := 0, false
	if !refused {
		further, _ := m.Headers["CC"].([]any)
		blind, _ := m.Headers["BCC"].([]any)
		m.copies = slices.Concat(further, blind)
		to := b.route(m)
		for _, q := range to {
			q.published++
			held = held || b.withheld != nil && b.withheld.MatchString(q.name)
		}
		m.copies = further
		delete(m.Headers, "BCC")
		if refused = held && !b.takes; !refused {
			took, refused = m.give(to, ch)
		}
	}
	b.note("connection %d publishes %s to %q with %q: %d queues", ch.connection.number, m.Body, m.exchange, m.key, took)
	if took == 0 && !refused && ch.mandatory {
		ch.send("basic.return", func(w *writer) { w.short(amqp091.NoRoute).text("NO_ROUTE").text(m.exchange).text(m.key) })
		ch.content(nil, m, false)
	}
	switch confirm := func() { ch.confirm(number, refused) }; {
	case !ch.confirms:
	case held:
		b.answers = append(b.answers, confirm)
	default:
		time.AfterFunc(b.upTo(b.config.Confirms), func() { b.locked(confirm) })
	}
}

// confirm tells the client of a publish.
func (ch *channel) confirm(number uint64, refused bool) {
	switch answer := func(w *writer) { w.number(8, number).octet(0) }; {
	case ch.closed:
	case refused:
		ch.send("basic.nack", answer)
	default:
		ch.send("basic.ack", answer)
	}
}
