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
	deliveries map[uint64]delivery // by their tags: what is not settled
	consumers  map[string]*consumer
	tags       uint64
	prefetch   int // of consumers that come
	limit      int // of the whole channel; 0: none
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
	for _, tag := range sortedKeys(ch.consumers) {
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

func (ch *channel) notFound(what, name string, by method) {
	ch.fail(amqp091.NotFound, fmt.Sprintf("NOT_FOUND - no %s '%s' in vhost '/'", what, name), by)
}

func (ch *channel) refuse(by method, text string, args ...any) {
	ch.fail(amqp091.PreconditionFailed, "PRECONDITION_FAILED - "+fmt.Sprintf(text, args...), by)
}

// unequal is the answer to a declare whose property or argument is not that of what exists.
func (ch *channel) unequal(what, name, argument string, received, current any, by method) {
	if received != nil && current != nil {
		received, current = property{received}, property{current}
	}
	ch.refuse(by, "inequivalent arg '%s' for %s '%s' in vhost '/': received %s but current is %s", argument, what, name,
		valueText(received), valueText(current))
}

// valueText is a value as the broker writes it in a refusal.
func valueText(value any) string {
	switch v := value.(type) {
	case nil:
		return "none"
	case property:
		return fmt.Sprintf("'%v'", v.value)
	case string:
		return fmt.Sprintf("the value '%s' of type 'longstr'", v)
	case bool:
		return fmt.Sprintf("the value '%v' of type 'bool'", v)
	case int32:
		return fmt.Sprintf("the value '%d' of type 'signedint'", v)
	default:
		return fmt.Sprintf("the value '%v' of type 'long'", v)
	}
}

// property is a value that is no argument.
type property struct{ value any }

func (ch *channel) exchangeMethod(m method, r reader) {
	b := ch.connection.broker
	r.short()
	switch m {
	case "exchange.declare":
		name, kind, bits, arguments := r.text(), r.text(), r.octet(), r.table()
		e := b.exchanges[name]
		passive, own := bits&1 != 0, &exchange{kind, bits&2 != 0, bits&4 != 0, bits&8 != 0, arguments}
		switch {
		case e == nil && passive:
			ch.notFound("exchange", name, m)
		case e == nil:
			b.note("connection %d declares exchange %s", ch.connection.number, name)
			b.exchanges[name] = own
		case passive:
		case e.kind != kind:
			ch.unequal("exchange", name, "type", kind, e.kind, m)
		case e.durable != own.durable:
			ch.unequal("exchange", name, "durable", own.durable, e.durable, m)
		case e.autoDelete != own.autoDelete:
			ch.unequal("exchange", name, "auto_delete", own.autoDelete, e.autoDelete, m)
		case e.internal != own.internal:
			ch.unequal("exchange", name, "internal", own.internal, e.internal, m)
		case e.arguments["alternate-exchange"] != arguments["alternate-exchange"]:
			ch.unequal("exchange", name, "alternate-exchange", arguments["alternate-exchange"],
				e.arguments["alternate-exchange"], m)
		}
		ch.ok(m, bits&16 != 0, nil)
	case "exchange.delete":
		name, bits := r.text(), r.octet()
		if bits&1 != 0 && slices.ContainsFunc(b.bindings, func(o binding) bool { return o.source == name }) {
			ch.refuse(m, "exchange '%s' in vhost '/' in use", name)
		} else {
			b.removeExchange(name)
		}
		ch.ok(m, bits&2 != 0, nil)
	default:
		to, from, key, bits, arguments := r.text(), r.text(), r.text(), r.octet(), r.table()
		switch {
		case b.exchanges[from] == nil && m == "exchange.bind":
			ch.notFound("exchange", from, m)
		case b.exchanges[to] == nil && m == "exchange.bind":
			ch.notFound("exchange", to, m)
		default:
			ch.bind(m == "exchange.bind", binding{from, to, key, arguments, true}, m)
		}
		ch.ok(m, bits&1 != 0, nil)
	}
}

// bind adds a binding or removes it.
func (ch *channel) bind(add bool, own binding, by method) {
	b := ch.connection.broker
	switch {
	case b.exchanges[own.source] == nil && !add:
	case b.exchanges[own.source] == nil:
		ch.notFound("exchange", own.source, by)
	case own.source == "":
		ch.fail(amqp091.AccessRefused, "ACCESS_REFUSED - operation not permitted on the default exchange", by)
	case !add:
		b.unbind(own.same)
	default:
		for _, other := range b.bindings {
			if other.same(own) {
				return
			}
		}
		b.bindings = append(b.bindings, own)
	}
}

func (ch *channel) queueMethod(m method, r reader) {
	b := ch.connection.broker
	r.short()
	name := r.text()
	q := b.queues[name]
	if m == "queue.declare" {
		ch.declare(name, r)
		return
	}
	switch {
	case q == nil && m == "queue.bind":
		if source := r.text(); b.exchanges[source] == nil {
			ch.notFound("exchange", source, m)
			return
		}
		fallthrough
	case q == nil && m == "queue.purge":
		ch.notFound("queue", name, m)
		return
	case q != nil && q.exclusive && q.owner != ch.connection:
		ch.locked(name, m)
		return
	}
	switch m {
	case "queue.bind":
		from, key, bits, arguments := r.text(), r.text(), r.octet(), r.table()
		ch.bind(true, binding{from, name, key, arguments, false}, m)
		ch.ok(m, bits&1 != 0, nil)
	case "queue.unbind":
		from, key, arguments := r.text(), r.text(), r.table()
		ch.bind(false, binding{from, name, key, arguments, false}, m)
		ch.ok(m, false, nil)
	case "queue.purge":
		purged := len(q.ready)
		q.ready = nil
		ch.ok(m, r.octet()&1 != 0, func(w *writer) { w.long(uint32(purged)) })
	case "queue.delete":
		bits, had := r.octet(), 0
		if q != nil {
			had = len(q.ready)
			switch {
			case bits&3 != 0 && q.quorum():
				ch.connection.fail(amqp091.NotImplemented, fmt.Sprintf("NOT_IMPLEMENTED - cannot delete queue '%s' in vhost '/'. "+
					"queue.delete operations with %s flag set are not supported by quorum queues", name,
					[]string{"if-unused", "if-empty"}[1-bits&1]), m)
			case bits&2 != 0 && had > 0:
				ch.refuse(m, "queue '%s' in vhost '/' not empty", name)
			case bits&1 != 0 && len(q.consumers) > 0:
				ch.refuse(m, "queue '%s' in vhost '/' in use", name)
			default:
				b.note("connection %d deletes queue %s", ch.connection.number, name)
				b.remove(q)
			}
		}
		ch.ok(m, bits&4 != 0, func(w *writer) { w.long(uint32(had)) })
	}
}

func (ch *channel) locked(name string, by method) {
	ch.fail(amqp091.ResourceLocked, fmt.Sprintf("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '%s' "+
		"in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match "+
		"that of the original declaration.", name), by)
}

func (ch *channel) declare(name string, r reader) {
	b := ch.connection.broker
	bits, arguments := r.octet(), r.table()
	passive, durable, exclusive, autoDelete := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
	q, invalid := b.queues[name], ""
	if arguments["x-queue-type"] == "quorum" {
		switch {
		case autoDelete:
			invalid = "auto-delete"
		case exclusive:
			invalid = "exclusive-owner"
		case !durable:
			invalid = "non-durable"
		}
	}
	switch {
	case q != nil && (q.exclusive && q.owner != ch.connection || !passive && q.exclusive != exclusive):
		ch.locked(name, "queue.declare")
	case q == nil && passive:
		ch.notFound("queue", name, "queue.declare")
	case q == nil && b.refuse != nil && b.refuse(name) != 0:
		code := b.refuse(name)
		ch.connection.fail(code, "INTERNAL_ERROR - the queue cannot be declared", "queue.declare")
	case q == nil && invalid != "":
		ch.refuse("queue.declare", "invalid property '%s' for queue '%s' in vhost '/'", invalid, name)
	case q == nil:
		if name == "" {
			b.names++
			name = "amq.gen-" + strconv.Itoa(b.names)
		}
		q = newQueue(b, name, durable, arguments)
		q.exclusive, q.autoDelete = exclusive, autoDelete
		if exclusive {
			q.owner = ch.connection
		}
		b.queues[name] = q
		b.note("connection %d declares queue %s", ch.connection.number, name)
	case passive:
	case q.durable != durable:
		ch.unequal("queue", name, "durable", durable, q.durable, "queue.declare")
	case q.autoDelete != autoDelete:
		ch.unequal("queue", name, "auto_delete", autoDelete, q.autoDelete, "queue.declare")
	default:
		if argument := q.differs(arguments); argument != "" {
			ch.unequal("queue", name, argument, arguments[argument], q.arguments[argument], "queue.declare")
		}
	}
	if q != nil {
		ch.ok("queue.declare", bits&16 != 0, func(w *writer) {
			w.text(q.name).long(uint32(len(q.ready))).long(uint32(q.users()))
		})
	}
}

// compared are the arguments that a declare must repeat, by the type of the queue, in the order of the broker.
var compared = map[bool][]string{
	false: {
		"x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length",
		"x-max-length-bytes", "x-max-priority", "x-overflow", "x-single-active-consumer", "x-queue-type",
	},
	true: {
		"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires", "x-max-length",
		"x-max-length-bytes", "x-overflow", "x-single-active-consumer", "x-queue-type", "x-delivery-limit", "x-message-ttl",
		"x-queue-leader-locator",
	},
}

// differs returns an argument that is not that of the queue.
func (q *queue) differs(arguments amqp091.Table) string {
	for _, name := range compared[q.quorum()] {
		own, has := integer(q.arguments[name])
		other, given := integer(arguments[name])
		if has && given && own == other {
			continue
		}
		if q.arguments[name] != arguments[name] {
			return name
		}
	}
	return ""
}

func (ch *channel) consume(r reader) {
	b := ch.connection.broker
	r.short()
	name, tag, bits, arguments := r.text(), r.text(), r.octet(), r.table()
	q := b.queues[name]
	switch {
	case q == nil:
		ch.notFound("queue", name, "basic.consume")
		return
	case q.exclusive && q.owner != ch.connection:
		ch.locked(name, "basic.consume")
		return
	case ch.consumers[tag] != nil:
		ch.connection.fail(amqp091.NotAllowed, "NOT_ALLOWED - attempt to reuse consumer tag '"+tag+"'", "basic.consume")
		return
	}
	c := &consumer{channel: ch, queue: q, tag: tag, automatic: bits&2 != 0, exclusive: bits&4 != 0, prefetch: ch.prefetch}
	c.priority, _ = integer(arguments["x-priority"])
	if alone := q.arguments["x-single-active-consumer"] == true; c.exclusive && alone && !q.quorum() ||
		len(q.consumers) > 0 && (c.exclusive || q.consumers[0].exclusive) && !q.quorum() {
		ch.fail(amqp091.AccessRefused, fmt.Sprintf("ACCESS_REFUSED - queue '%s' in vhost '/' in exclusive use", name),
			"basic.consume")
		return
	}
	if tag == "" {
		b.names++
		c.tag = "amq.ctag-" + strconv.Itoa(b.names)
	}
	ch.consumers[c.tag] = c
	q.consumers = append(q.consumers, c)
	q.enterTurns(c)
	b.note("connection %d consumes %s", ch.connection.number, name)
	ch.ok("basic.consume", bits&8 != 0, func(w *writer) { w.text(c.tag) })
	q.moveOn()
}

func (ch *channel) get(r reader) {
	r.short()
	name, automatic := r.text(), r.octet()&1 != 0
	q := ch.connection.broker.queues[name]
	switch {
	case q == nil:
		ch.notFound("queue", name, "basic.get")
	case q.quorum() && q.arguments["x-single-active-consumer"] == true:
		ch.fail(amqp091.ResourceLocked, fmt.Sprintf("RESOURCE_LOCKED - cannot obtain access to locked queue '%s' in "+
			"vhost '/'. basic.get operations are not supported by", name), "basic.get")
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
	if m == "basic.ack" {
		ch.acknowledge(done)
		return
	}
	ch.reject(done, requeue, m == "basic.reject" || ch.connection.broker.does(nackCounts), true)
}

func (ch *channel) startPublish(r reader) {
	r.short()
	ch.publishing = &message{exchange: r.text(), key: r.text()}
	ch.mandatory = r.octet()&1 != 0
	ch.connection.publishes = true
	ch.connection.block()
}

func (ch *channel) header(payload []byte) {
	ch.size, ch.publishing.properties = readHeader(payload)
	ch.publishIfComplete()
}

func (ch *channel) body(payload []byte) {
	ch.publishing.body = append(ch.publishing.body, payload...)
	ch.publishIfComplete()
}

func (ch *channel) publishIfComplete() {
	if uint64(len(ch.publishing.body)) < ch.size {
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
	b := ch.connection.broker
	ch.published++
	number := ch.published
	_, err := strconv.ParseUint(m.expiration(), 10, 32)
	e := b.exchanges[m.exchange]
	switch {
	case e == nil:
		ch.notFound("exchange", m.exchange, "basic.publish")
		return
	case e.internal:
		ch.fail(amqp091.AccessRefused, fmt.Sprintf("ACCESS_REFUSED - cannot publish to internal exchange '%s' in vhost '/'",
			m.exchange), "basic.publish")
		return
	case m.expiration() != "" && err != nil:
		ch.refuse("basic.publish", "invalid expiration '%s': no_integer", m.expiration())
		return
	}
	took := 0
	if !refused {
		further, _ := m.headers()["CC"].([]any)
		blind, _ := m.headers()["BCC"].([]any)
		m.copies = slices.Concat(further, blind)
		to := b.route(m)
		m.copies = further
		delete(m.headers(), "BCC")
		took, refused = m.give(to, ch)
	}
	b.note("connection %d publishes %s to %q with %q: %d queues", ch.connection.number, m.body, m.exchange, m.key, took)
	if took == 0 && !refused && ch.mandatory {
		ch.send("basic.return", func(w *writer) { w.short(amqp091.NoRoute).text("NO_ROUTE").text(m.exchange).text(m.key) })
		ch.content(nil, m, false)
	}
	if !ch.confirms {
		return
	}
	answer := method("basic.ack")
	if refused {
		answer = "basic.nack"
	}
	time.AfterFunc(b.upTo(b.config.Confirms), func() {
		ch.connection.locked(func() {
			if !ch.closed && !ch.connection.closed {
				ch.send(answer, func(w *writer) { w.number(8, number).octet(0) })
			}
		})
	})
}
