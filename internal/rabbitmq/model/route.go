package model

import (
	"reflect"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

type exchange struct {
	kind                          string
	durable, autoDelete, internal bool
	arguments                     amqp091.Table
}

type binding struct {
	source, target, key string
	arguments           amqp091.Table
	toExchange          bool
}

func (b binding) same(o binding) bool {
	equal := len(b.arguments) == 0 && len(o.arguments) == 0 || reflect.DeepEqual(b.arguments, o.arguments)
	return b.source == o.source && b.target == o.target && b.key == o.key && b.toExchange == o.toExchange && equal
}

// route returns the queues that get a message, in the order of their names.
func (b *Broker) route(m *message) (to []*queue) {
	found := map[string]bool{}
	for _, key := range append([]any{m.key}, m.copies...) {
		text, _ := key.(string)
		b.follow(m.exchange, text, m, map[string]bool{}, found)
	}
	for _, name := range sorted(found) {
		to = append(to, b.queues[name])
	}
	return to
}

// follow notes the queues of an exchange and of those that are bound to it. The alternate exchange gets what goes
// nowhere else.
func (b *Broker) follow(exchange, key string, m *message, seen, found map[string]bool) (routed bool) {
	e := b.exchanges[exchange]
	if e == nil || seen[exchange] {
		return false
	}
	seen[exchange] = true
	if exchange == "" {
		if b.queues[key] != nil {
			found[key] = true
			return true
		}
		return false
	}
	for _, each := range b.bindings {
		switch {
		case each.source != exchange || !e.matches(each, key, m):
		case each.toExchange:
			routed = b.follow(each.target, key, m, seen, found) || routed
		case b.queues[each.target] != nil:
			found[each.target], routed = true, true
		}
	}
	if alternate, has := e.arguments["alternate-exchange"].(string); has && !routed {
		return b.follow(alternate, key, m, seen, found)
	}
	return routed
}

func (e *exchange) matches(b binding, key string, m *message) bool {
	switch e.kind {
	case "fanout":
		return true
	case "topic":
		return matchWords(strings.Split(b.key, "."), strings.Split(key, "."))
	case "headers":
		return matchHeaders(b.arguments, m.Headers)
	default:
		return b.key == key
	}
}

func matchWords(pattern, words []string) bool {
	switch {
	case len(pattern) == 0:
		return len(words) == 0
	case pattern[0] == "#":
		for i := range len(words) + 1 {
			if matchWords(pattern[1:], words[i:]) {
				return true
			}
		}
		return false
	default:
		return len(words) > 0 && (pattern[0] == "*" || pattern[0] == words[0]) && matchWords(pattern[1:], words[1:])
	}
}

func matchHeaders(arguments, headers map[string]any) bool {
	any := arguments["x-match"] == "any"
	for _, key := range sorted(arguments) {
		if strings.HasPrefix(key, "x-") {
			continue
		}
		value, has := headers[key]
		if equal := has && reflect.DeepEqual(value, arguments[key]); equal == any {
			return any
		}
	}
	return !any
}

// give gives a message to queues, each of its own copy. It returns how many have taken it, and whether one has refused
// it. A quorum queue refuses what comes from a channel, or from a queue that dead-letters at-least-once.
func (m *message) give(to []*queue, from any) (took int, refused bool) {
	for _, q := range to {
		own := *m
		if q.enqueue(&own, from) {
			took++
		} else {
			refused = true
		}
	}
	for _, q := range to { // all have it before one of them dead-letters
		q.moveOn()
	}
	return took, refused
}

// unbind removes bindings. An exchange that is deleted with its last binding goes, too.
func (b *Broker) unbind(gone func(binding) bool) {
	sources := map[string]bool{}
	b.bindings = slices.DeleteFunc(b.bindings, func(each binding) bool {
		if gone(each) {
			sources[each.source] = true
			return true
		}
		return false
	})
	for _, name := range sorted(sources) {
		bound := slices.ContainsFunc(b.bindings, func(each binding) bool { return each.source == name })
		if e := b.exchanges[name]; e != nil && e.autoDelete && !bound {
			b.removeExchange(name)
		}
	}
}

func (b *Broker) removeExchange(name string) {
	delete(b.exchanges, name)
	b.unbind(func(o binding) bool { return o.source == name || o.toExchange && o.target == name })
}

// remove deletes a queue: its consumers are cancelled, and its messages are gone.
func (b *Broker) remove(q *queue) {
	q.gone = true
	delete(b.queues, q.name)
	q.stop()
	b.unbind(func(o binding) bool { return !o.toExchange && o.target == q.name })
	for len(q.consumers) > 0 {
		q.consumers[0].cancel()
	}
}
