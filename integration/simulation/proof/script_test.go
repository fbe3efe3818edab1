package proof

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// ttl is that of queues and messages, in milliseconds.
const ttl = 40

// A script is what clients do with a broker, one command after the other.
type script struct {
	seed   uint64
	timed  bool // queues and messages can expire
	ranked bool // messages have priorities, and all queues are classic
	queues []string
	steps  []step
}

// A step is one command.
type step struct {
	text string
	run  func(s *side) string // returns the broker's answer
}

// draw makes the steps of a script.
type draw struct {
	*rand.Rand
	script
	declared map[string]amqp091.Table
	messages int
}

// scriptOf draws the script of a seed. Two queues are sinks: all queues may dead-letter to them, so the order of their
// messages is not compared. Each other queue gets the dead letters of one queue at most.
func scriptOf(seed uint64) script {
	d := &draw{Rand: rand.New(rand.NewPCG(seed, 2)), declared: map[string]amqp091.Table{}}
	d.seed, d.timed = seed, d.chance(50)
	d.ranked = !d.timed && d.chance(40)
	d.queues = []string{"q0", "q1", "q2", "wait", "sink0", "sink1"}
	for _, name := range []string{"x0", "x1", "dlx"} {
		d.exchange(name)
	}
	for _, name := range d.queues {
		d.declared[name] = d.arguments(name)
		d.declare(name, d.declared[name])
	}
	for range 6 {
		d.bind(true)
	}
	for range 40 {
		d.command()
	}
	d.add(func(s *side) string { s.end(); return "" }, "all consumers and clients end")
	for _, name := range []string{"wait", "q0", "q1", "q2", "sink0", "sink1"} {
		d.add(func(s *side) string { return s.drain(name) }, "%s has", name)
	}
	return d.script
}

func one[T any](d *draw, all ...T) T { return all[d.IntN(len(all))] }

func (d *draw) chance(percent int) bool { return d.IntN(100) < percent }

func (d *draw) add(run func(s *side) string, format string, args ...any) {
	d.steps = append(d.steps, step{fmt.Sprintf(format, args...), run})
}

func (d *draw) exchange(name string) {
	kind := one(d, "direct", "fanout", "topic", "headers")
	arguments := amqp091.Table{}
	if name != "dlx" && d.chance(25) {
		arguments["alternate-exchange"] = "x1"
	}
	automatic, internal := d.chance(10), d.chance(5)
	d.add(func(s *side) string {
		return s.sync(0, func(ch *amqp091.Channel) error {
			return ch.ExchangeDeclare(s.name(name), kind, true, automatic, internal, false, s.named(arguments))
		})
	}, "declare exchange %s %s auto-delete=%v internal=%v %v", name, kind, automatic, internal, arguments)
}

// arguments draws the arguments of a queue.
func (d *draw) arguments(name string) amqp091.Table {
	quorum := d.chance(60) && !d.ranked
	a := amqp091.Table{"x-queue-type": map[bool]string{true: "quorum", false: "classic"}[quorum]}
	letters, key := "dlx", ""
	switch name {
	case "sink0", "sink1":
		return a
	case "wait":
		letters, key = "", "q0"
		if d.timed {
			a["x-message-ttl"] = int64(ttl)
		}
	case "q0":
		if d.chance(50) {
			letters, key = "", "wait"
		}
	}
	if d.chance(80) {
		a["x-dead-letter-exchange"] = letters
		if key != "" || d.chance(30) {
			a["x-dead-letter-routing-key"] = key
		}
	}
	if d.chance(35) && name != "wait" {
		if d.chance(70) {
			a["x-max-length"] = int64(1 + d.IntN(4))
		}
		if a["x-max-length"] == nil || d.chance(30) {
			a["x-max-length-bytes"] = int64(d.IntN(one(d, 10, 60)))
		}
		if overflow := one(d, "", "drop-head", "reject-publish", "reject-publish-dlx"); overflow != "" {
			if !quorum || overflow != "reject-publish-dlx" {
				a["x-overflow"] = overflow
			}
		}
	}
	switch {
	case quorum && d.chance(40):
		a["x-delivery-limit"] = int64(d.IntN(4) - 1)
	case d.ranked && d.chance(60):
		a["x-max-priority"] = int64(5)
	}
	if quorum && d.chance(40) {
		a["x-dead-letter-strategy"], a["x-overflow"] = "at-least-once", "reject-publish"
	}
	if d.chance(20) {
		a["x-single-active-consumer"] = true
	}
	return a
}

func (d *draw) declare(name string, a amqp091.Table) {
	durable, automatic, exclusive := !d.chance(4), d.chance(4), d.chance(2)
	client := d.IntN(clients)
	d.add(func(s *side) string {
		return s.sync(client, func(ch *amqp091.Channel) error {
			_, err := ch.QueueDeclare(s.name(name), durable, automatic, exclusive, false, s.named(a))
			return err
		})
	}, "client %d declares %s durable=%v auto-delete=%v exclusive=%v %v", client, name, durable, automatic, exclusive, a)
}

var keys = []string{"a", "a.b", "b.a", "a.b.c"}

// bind adds a binding or removes it.
func (d *draw) bind(add bool) {
	source, key, toExchange := one(d, "x0", "x1", "dlx"), one(d, append(keys, "#", "*.b", "a.#", "a.*")...), false
	target := d.queues[d.IntN(len(d.queues))]
	switch {
	case source == "dlx":
		target = one(d, "sink0", "sink1")
	case source == "x0" && d.chance(15):
		target, toExchange = "x1", true
	}
	arguments := amqp091.Table{}
	if d.chance(50) {
		arguments = amqp091.Table{"h": one(d, "1", "2"), "x-match": one(d, "all", "any")}
		if d.chance(50) {
			arguments["i"] = "1"
		}
	}
	d.add(func(s *side) string {
		return s.sync(0, func(ch *amqp091.Channel) error {
			switch {
			case toExchange && add:
				return ch.ExchangeBind(s.name(target), key, s.name(source), false, arguments)
			case toExchange:
				return ch.ExchangeUnbind(s.name(target), key, s.name(source), false, arguments)
			case add:
				return ch.QueueBind(s.name(target), key, s.name(source), false, arguments)
			default:
				return ch.QueueUnbind(s.name(target), key, s.name(source), arguments)
			}
		})
	}, "bind(%v) %s to %s with %s %v", add, target, source, key, arguments)
}

// command draws a command.
func (d *draw) command() {
	client, queue := d.IntN(clients), d.queues[d.IntN(4)]
	switch n := d.IntN(100); {
	case n < 30:
		d.publish(client)
	case n < 40:
		d.consume(client, queue)
	case n < 60:
		d.settle()
	case n < 68:
		automatic := d.chance(30)
		d.add(func(s *side) string { return s.get(client, queue, automatic) },
			"client %d gets from %s automatic=%v", client, queue, automatic)
	case n < 71:
		slot := d.IntN(slots)
		d.add(func(s *side) string { return s.cancel(slot) }, "consumer %d is cancelled", slot)
	case n < 74:
		d.add(func(s *side) string {
			return s.counted(client, func(ch *amqp091.Channel) (int, error) { return ch.QueuePurge(s.name(queue), false) })
		}, "client %d purges %s", client, queue)
	case n < 77:
		unused, empty := d.chance(40), d.chance(40)
		d.add(func(s *side) string {
			if (unused || empty) && s.several(client) { // a quorum queue refuses this with the end of the connection
				return "several channels have deliveries"
			}
			return s.counted(client, func(ch *amqp091.Channel) (int, error) {
				return ch.QueueDelete(s.name(queue), unused, empty, false)
			})
		}, "client %d deletes %s if-unused=%v if-empty=%v", client, queue, unused, empty)
	case n < 83:
		name := d.queues[d.IntN(len(d.queues))]
		arguments := d.declared[name]
		if d.chance(30) {
			arguments = d.arguments(name)
		}
		d.declare(name, arguments)
	case n < 89:
		d.bind(d.chance(60))
	case n < 92:
		d.policy()
	case n < 96:
		d.add(func(s *side) string { return s.cut(client) }, "the connection of client %d is cut", client)
	case n < 98:
		slot := d.IntN(slots)
		d.add(func(s *side) string { s.closeChannel(slot); return "" }, "the channel of consumer %d is closed", slot)
	case n < 99:
		d.exchange(one(d, "x0", "x1"))
	default:
		name, unused := one(d, "x0", "x1", "dlx", "missing"), d.chance(50)
		d.add(func(s *side) string {
			return s.sync(client, func(ch *amqp091.Channel) error { return ch.ExchangeDelete(s.name(name), unused, false) })
		}, "client %d deletes exchange %s if-unused=%v", client, name, unused)
	}
}

func (d *draw) publish(client int) {
	exchange, key := one(d, "", "", "x0", "x0", "x1", "x1", "dlx"), one(d, keys...)
	direct := exchange == ""
	if direct {
		key = d.queues[d.IntN(4)]
	}
	if d.chance(2) {
		exchange = "missing"
	}
	m := amqp091.Publishing{Headers: amqp091.Table{}}
	if d.chance(60) {
		m.Headers["h"] = one(d, "1", "2")
	}
	if d.chance(30) {
		m.Headers["i"] = one(d, "1", "2")
	}
	var copies []any
	if d.chance(8) {
		copies = []any{one(d, "q1", "q2", "a", "a.b")}
	}
	if d.ranked && d.chance(50) {
		m.Priority = uint8(d.IntN(10))
	}
	if d.timed && d.chance(15) {
		m.Expiration = one(d, "40", "40", "0", "1000000", "x")
	}
	m.DeliveryMode = uint8(1 + d.IntN(2))
	if d.chance(20) {
		m.MessageId, m.ContentType, m.ReplyTo = "id", "text/plain", "somewhere"
	}
	// A quorum queue tells a publisher late that it is full, where another queue has refused the message before.
	mandatory, count, blind := d.chance(50), 1, one(d, "CC", "CC", "BCC")
	if direct && copies == nil && m.Expiration != "0" {
		count = one(d, 1, 2, 4)
	}
	first := d.messages
	d.messages += count
	d.add(func(s *side) string {
		var answers []string
		for i := range count {
			own := m
			own.Body = fmt.Append(nil, "m", first+i)
			own.Headers = amqp091.Table{}
			for key, value := range m.Headers {
				own.Headers[key] = value
			}
			for _, key := range copies {
				own.Headers[blind] = []any{s.name(key.(string))}
			}
			to := key
			if direct {
				to = s.name(key)
			}
			answers = append(answers, s.publish(client, s.name(exchange), to, mandatory, own))
		}
		return strings.Join(answers, ", ")
	}, "client %d publishes m%d+%d to %q with %s mandatory=%v %v %s%v expiration=%s priority=%d", client, first, count,
		exchange, key, mandatory, m.Headers, blind, copies, m.Expiration, m.Priority)
}

func (d *draw) consume(client int, queue string) {
	slot, prefetch, automatic, exclusive := d.IntN(slots), one(d, 1, 1, 2, 3, 0), d.chance(10), d.chance(5)
	arguments := amqp091.Table{}
	if d.chance(15) {
		arguments["x-priority"] = int64(d.IntN(3))
	}
	d.add(func(s *side) string { return s.consume(slot, client, queue, prefetch, automatic, exclusive, arguments) },
		"consumer %d of client %d consumes %s prefetch=%d automatic=%v exclusive=%v %v", slot, client, queue, prefetch,
		automatic, exclusive, arguments)
}

// settle settles a delivery of a consumer, or of a basic.get of a client.
func (d *draw) settle() {
	holder, at := d.IntN(slots+clients), d.IntN(8)
	how, multiple, requeue := one(d, "ack", "ack", "nack", "reject"), d.chance(25), d.chance(60)
	unknown := d.chance(3)
	d.add(func(s *side) string { return s.settle(holder, at, how, multiple, requeue, unknown) },
		"holder %d: %s of delivery %d multiple=%v requeue=%v unknown tag=%v", holder, how, at, multiple, requeue, unknown)
}

func (d *draw) policy() {
	definition := map[string]any{}
	for _, each := range []func(){
		func() { definition["max-length"] = int64(1 + d.IntN(3)) },
		func() { definition["max-length-bytes"] = int64(d.IntN(one(d, 10, 60))) },
		func() { definition["dead-letter-exchange"] = "dlx" },
		func() { definition["delivery-limit"] = int64(1 + d.IntN(3)) },
	} {
		if d.chance(35) {
			each()
		}
	}
	pattern := one(d, "q1", "q[12]", "q[0-2]")
	d.add(func(s *side) string {
		own := map[string]any{}
		for key, value := range definition {
			if key == "dead-letter-exchange" {
				value = s.name("dlx")
			}
			own[key] = value
		}
		return s.policy("^"+regexp.QuoteMeta(s.prefix)+pattern+"$", own)
	}, "policy of %s: %v", pattern, definition)
}

// sinks reports whether the order of the messages of a queue depends on when they were dead-lettered.
func sinks(queue string) bool { return slices.Contains([]string{"sink0", "sink1"}, queue) }
