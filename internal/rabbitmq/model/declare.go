package model

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

func (ch *channel) notFound(what, name string, by method) {
	ch.fail(amqp091.NotFound, fmt.Sprintf("NOT_FOUND - no %s '%s' in vhost '/'", what, name), by)
}

func (ch *channel) refuse(by method, text string, args ...any) {
	ch.fail(amqp091.PreconditionFailed, "PRECONDITION_FAILED - "+fmt.Sprintf(text, args...), by)
}

func (ch *channel) denied(by method, text string, args ...any) {
	ch.fail(amqp091.AccessRefused, "ACCESS_REFUSED - "+fmt.Sprintf(text, args...), by)
}

func (ch *channel) locked(name string, by method) {
	ch.fail(amqp091.ResourceLocked, fmt.Sprintf("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '%s' "+
		"in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match "+
		"that of the original declaration.", name), by)
}

// lockedFor reports whether the queue is that of another connection.
func (q *queue) lockedFor(ch *channel) bool {
	return q != nil && q.exclusive && q.owner != ch.connection
}

// property is a property or an argument that a declare must repeat.
type property struct {
	name              string
	received, current any
}

// repeats refuses a declare that does not repeat the properties of what exists.
func (ch *channel) repeats(by method, what, name string, all []property) {
	for _, p := range all {
		received, is := integer(p.received)
		current, number := integer(p.current)
		if is && number && received == current || reflect.DeepEqual(p.received, p.current) {
			continue
		}
		text := func(value any) string {
			switch {
			case value == nil:
				return "none"
			case p.received != nil && p.current != nil:
				return fmt.Sprintf("'%v'", value)
			}
			kind, known := kinds[reflect.TypeOf(value)]
			if !known {
				kind = "long"
			}
			return fmt.Sprintf("the value '%v' of type '%s'", value, kind)
		}
		ch.refuse(by, "inequivalent arg '%s' for %s '%s' in vhost '/': received %s but current is %s", p.name, what, name,
			text(p.received), text(p.current))
		return
	}
}

// kinds are the names of types in a refusal.
var kinds = map[reflect.Type]string{
	reflect.TypeFor[string](): "longstr", reflect.TypeFor[bool](): "bool", reflect.TypeFor[int32](): "signedint",
}

func (ch *channel) exchangeMethod(m method, r reader) {
	b := ch.connection.broker
	r.short()
	switch m {
	case "exchange.declare":
		name, kind, bits, arguments := r.text(), r.text(), r.octet(), r.table()
		e, passive := b.exchanges[name], bits&1 != 0
		own := &exchange{kind, bits&2 != 0, bits&4 != 0, bits&8 != 0, arguments}
		switch {
		case e == nil && passive:
			ch.notFound("exchange", name, m)
		case e == nil:
			b.note("connection %d declares exchange %s", ch.connection.number, name)
			b.exchanges[name] = own
		case !passive:
			ch.repeats(m, "exchange", name, []property{
				{"type", kind, e.kind}, {"durable", own.durable, e.durable}, {"auto_delete", own.autoDelete, e.autoDelete},
				{"internal", own.internal, e.internal},
				{"alternate-exchange", arguments["alternate-exchange"], e.arguments["alternate-exchange"]},
			})
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
		add := m == "exchange.bind"
		if own := (binding{from, to, key, arguments, true}); add && b.exchanges[from] != nil && b.exchanges[to] == nil {
			ch.notFound("exchange", to, m)
		} else {
			ch.bind(add, own, m)
		}
		ch.ok(m, bits&1 != 0, nil)
	}
}

// bind adds a binding or removes it.
func (ch *channel) bind(add bool, own binding, by method) {
	b := ch.connection.broker
	switch exists := b.exchanges[own.source] != nil; {
	case !exists && add:
		ch.notFound("exchange", own.source, by)
	case own.source == "":
		ch.denied(by, "operation not permitted on the default exchange")
	case exists && !add:
		b.unbind(own.same)
	case exists && !slices.ContainsFunc(b.bindings, own.same):
		b.bindings = append(b.bindings, own)
	}
}

func (ch *channel) queueMethod(m method, r reader) {
	b := ch.connection.broker
	r.short()
	name := r.text()
	q := b.queues[name]
	switch {
	case m == "queue.declare":
		ch.declare(name, r)
		return
	case m == "queue.unbind": // it is refused only where there is the binding
		from, key, arguments := r.text(), r.text(), r.table()
		own := binding{from, name, key, arguments, false}
		if q.lockedFor(ch) && slices.ContainsFunc(b.bindings, own.same) {
			ch.locked(name, m)
		} else {
			ch.bind(false, own, m)
		}
		ch.ok(m, false, nil)
		return
	case q.lockedFor(ch):
		ch.locked(name, m)
		return
	case q == nil && m == "queue.purge":
		ch.notFound("queue", name, m)
		return
	}
	switch m {
	case "queue.bind":
		from, key, bits, arguments := r.text(), r.text(), r.octet(), r.table()
		if q == nil && b.exchanges[from] != nil {
			ch.notFound("queue", name, m)
			return
		}
		ch.bind(true, binding{from, name, key, arguments, false}, m)
		ch.ok(m, bits&1 != 0, nil)
	case "queue.purge":
		purged := q.purge()
		ch.ok(m, r.octet()&1 != 0, func(w *writer) { w.long(uint32(purged)) })
	case "queue.delete":
		bits, had := r.octet(), 0
		if q != nil {
			had = len(q.ready)
			ch.deleteQueue(q, bits&1 != 0, bits&2 != 0)
		}
		ch.ok(m, bits&4 != 0, func(w *writer) { w.long(uint32(had)) })
	}
}

func (ch *channel) deleteQueue(q *queue, ifUnused, ifEmpty bool) {
	const m = "queue.delete"
	switch {
	case (ifUnused || ifEmpty) && q.quorum():
		flag := "if-empty"
		if ifUnused {
			flag = "if-unused"
		}
		ch.connection.fail(amqp091.NotImplemented, fmt.Sprintf("NOT_IMPLEMENTED - cannot delete queue '%s' in vhost '/'. "+
			"queue.delete operations with %s flag set are not supported by quorum queues", q.name, flag), m)
	case ifEmpty && len(q.ready) > 0:
		ch.refuse(m, "queue '%s' in vhost '/' not empty", q.name)
	case ifUnused && len(q.consumers) > 0:
		ch.refuse(m, "queue '%s' in vhost '/' in use", q.name)
	default:
		q.broker.note("connection %d deletes queue %s", ch.connection.number, q.name)
		q.broker.remove(q)
	}
}

func (ch *channel) declare(name string, r reader) {
	const m = "queue.declare"
	b := ch.connection.broker
	bits, arguments := r.octet(), r.table()
	passive, durable, exclusive, autoDelete := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0
	q, invalid := b.queues[name], ""
	if arguments["x-queue-type"] == nil && b.defaultType != "" && durable && !exclusive && !autoDelete {
		arguments["x-queue-type"] = b.defaultType
	}
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
	var refused uint16
	if q == nil && !passive && b.refuse != nil {
		refused = b.refuse(name)
	}
	switch {
	case q.lockedFor(ch) || q != nil && !passive && q.exclusive != exclusive:
		ch.locked(name, m)
	case q == nil && passive:
		ch.notFound("queue", name, m)
	case refused != 0:
		ch.connection.fail(refused, "INTERNAL_ERROR - the queue cannot be declared", m)
	case q == nil && invalid != "":
		ch.refuse(m, "invalid property '%s' for queue '%s' in vhost '/'", invalid, name)
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
	case !passive:
		all := []property{{"durable", durable, q.durable}, {"auto_delete", autoDelete, q.autoDelete}}
		for _, argument := range compared[q.quorum()] {
			all = append(all, property{argument, arguments[argument], q.arguments[argument]})
		}
		ch.repeats(m, "queue", name, all)
	}
	if q != nil {
		ch.ok(m, bits&16 != 0, func(w *writer) {
			w.text(q.name).long(uint32(len(q.ready))).long(uint32(q.users()))
		})
	}
}

// compared are the arguments that a declare must repeat, by whether it is a quorum queue, in the order of the broker.
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
