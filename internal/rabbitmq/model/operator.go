package model

import (
	"fmt"
	"reflect"
	"regexp"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Policy sets arguments of the queues whose names match. Numbers are int64.
type Policy struct {
	Pattern    *regexp.Regexp
	Definition map[string]any // with the names of policies, such as "message-ttl"
}

// NewPolicy returns a policy, or what is wrong with it.
func NewPolicy(pattern string, definition map[string]any) (p Policy, err error) {
	p.Definition = map[string]any{}
	if p.Pattern, err = regexp.Compile(pattern); err != nil {
		return Policy{}, fmt.Errorf("the pattern %q is no regular expression: %w", pattern, err)
	}
	for _, key := range sorted(definition) {
		value := definition[key]
		zero, known := policyKeys[key]
		if number, is := integer(value); is {
			value = number
		}
		switch {
		case !known:
			return Policy{}, fmt.Errorf("the model has no key %q of a policy; it has %q", key, sorted(policyKeys))
		case reflect.TypeOf(value) != reflect.TypeOf(zero):
			return Policy{}, fmt.Errorf("the value of %q is %v (%T): it must be a %T", key, value, value, zero)
		}
		p.Definition[key] = value
	}
	return p, nil
}

// policyKeys are those that the model knows, each with a value of its type.
var policyKeys = map[string]any{
	"max-length": int64(0), "max-length-bytes": int64(0), "message-ttl": int64(0), "delivery-limit": int64(0),
	"overflow": "", "dead-letter-exchange": "", "dead-letter-routing-key": "", "dead-letter-strategy": "",
}

// SetPolicy sets a policy, by its name. A nil pattern removes it.
func (b *Broker) SetPolicy(name string, p Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("policy %s: %v %v", name, p.Pattern, p.Definition)
	drops := map[string]bool{} // a classic queue drops what is too much before it looks at its new overflow
	for name, q := range b.queues {
		drops[name] = !q.quorum() && q.dropsHead()
	}
	if p.Pattern == nil {
		delete(b.policies, name)
	} else {
		b.policies[name] = p
	}
	for _, name := range sorted(b.queues) {
		if drops[name] {
			b.queues[name].dropHead()
		}
		b.queues[name].moveOn()
	}
}

// forQuorum reports whether a policy has a key that classic queues do not know: it is not in force for them.
func (p Policy) forQuorum() bool {
	_, limit := p.Definition["delivery-limit"]
	_, strategy := p.Definition["dead-letter-strategy"]
	return limit || strategy
}

// policy returns the policy of a queue, and its name. One policy is in force.
func (b *Broker) policy(q *queue) (name string, p Policy) {
	if len(b.policies) == 0 { // as most of the time: each look at a queue comes here
		return "", Policy{}
	}
	for _, name := range sorted(b.policies) {
		if p := b.policies[name]; p.Pattern.MatchString(q.name) && (q.quorum() || !p.forQuorum()) {
			return name, p
		}
	}
	return "", Policy{}
}

// DeleteQueue deletes a queue with its messages, as another client does, and reports whether it did. With onlyEmpty it
// leaves a queue alone that has a message, also one that a consumer has.
func (b *Broker) DeleteQueue(name string, onlyEmpty bool) (done bool) {
	b.locked(func() { done = b.change(name, onlyEmpty, "deletes") != nil })
	return done
}

// ReplaceQueue is DeleteQueue, and declares the queue again with the same arguments and without bindings.
func (b *Broker) ReplaceQueue(name string, onlyEmpty bool) (done bool) {
	b.locked(func() {
		q := b.change(name, onlyEmpty, "replaces")
		if done = q != nil; done {
			b.queues[name] = newQueue(b, name, q.durable, q.arguments)
		}
	})
	return done
}

// change deletes a queue, which it returns.
func (b *Broker) change(name string, onlyEmpty bool, does string) *queue {
	q := b.queues[name]
	if q == nil || onlyEmpty && len(b.messages(q)) > 0 {
		return nil
	}
	b.note("another client %s queue %s", does, name)
	b.remove(q)
	return q
}

// PurgeQueue removes the messages of a queue that no consumer has, and returns how many.
func (b *Broker) PurgeQueue(name string) (purged int) {
	b.locked(func() {
		if q := b.queues[name]; q != nil {
			b.note("another client purges queue %s", name)
			purged = q.purge()
		}
	})
	return purged
}

// SetDefaultType sets the type of the queues of the virtual host that are declared without one.
func (b *Broker) SetDefaultType(kind string) { b.locked(func() { b.defaultType = kind }) }

// DeclareQueue declares a durable queue, as another client does.
func (b *Broker) DeclareQueue(name string, arguments amqp091.Table) {
	b.locked(func() {
		if b.queues[name] == nil {
			b.queues[name] = newQueue(b, name, true, arguments)
		}
	})
}

// Unbind removes the bindings of a queue to an exchange.
func (b *Broker) Unbind(queue, exchange string) {
	b.locked(func() {
		b.note("another client unbinds queue %s from %s", queue, exchange)
		b.unbind(func(o binding) bool { return !o.toExchange && o.target == queue && o.source == exchange })
	})
}

// DeleteExchange deletes an exchange with its bindings.
func (b *Broker) DeleteExchange(name string) {
	b.locked(func() {
		b.note("another client deletes exchange %s", name)
		b.removeExchange(name)
	})
}

// Message is a message as it lies in a queue.
type Message struct {
	amqp091.Publishing
	Exchange, RoutingKey string
	Expires              time.Time // zero: never
	Redelivered          bool
	Unacknowledged       bool // a consumer has it
}

// Messages returns the messages of a queue: those that are ready first, then those that consumers have. It changes
// nothing.
func (b *Broker) Messages(queue string) (all []Message) {
	b.locked(func() {
		if q := b.queues[queue]; q != nil {
			all = b.messages(q)
		}
	})
	return all
}

func (b *Broker) messages(q *queue) (all []Message) {
	add := func(m *message, unacknowledged bool) {
		all = append(all, Message{m.Publishing, m.exchange, m.key, m.expires, m.redelivered, unacknowledged})
	}
	for _, waiting := range [][]*message{q.leaving, q.ready} {
		for _, m := range waiting {
			add(m, false)
		}
	}
	for _, number := range sorted(b.connections) {
		for _, d := range b.connections[number].unacknowledged(q) {
			add(d.message, true)
		}
	}
	return all
}

// Queues returns the names of the queues, in their order.
func (b *Broker) Queues() (names []string) {
	b.locked(func() { names = sorted(b.queues) })
	return names
}

// Exchanges returns the names of the exchanges, in their order.
func (b *Broker) Exchanges() (names []string) {
	b.locked(func() { names = sorted(b.exchanges) })
	return names
}

// Consumers returns how many consumers a queue has.
func (b *Broker) Consumers(queue string) (consumers int) {
	b.locked(func() {
		if q := b.queues[queue]; q != nil {
			consumers = len(q.consumers)
		}
	})
	return consumers
}

// Publish publishes a message as another client does, without a connection. It returns how many queues have got it.
func (b *Broker) Publish(exchange, key string, p amqp091.Publishing) (took int) {
	b.locked(func() {
		m := &message{Publishing: p, exchange: exchange, key: key}
		took, _ = m.give(b.route(m), nil)
	})
	return took
}
