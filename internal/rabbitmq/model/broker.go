package model

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Config is how a Broker behaves.
type Config struct {
	Rules           Rules         // the last of Versions where it is zero
	Seed            uint64        // of all random choices
	Latency         time.Duration // the longest of each way of a connection
	Confirms        time.Duration // the longest until a publish is confirmed
	ConsumerTimeout time.Duration // 30 min where it is 0

	// Fault is asked before and after each method of a client, in the order in which the broker handles them. It may be
	// nil. It must not call the Broker.
	Fault func(Event) Fault
}

// Event is a method of a client.
type Event struct {
	Connection int    // from 1 on, in the order of the dials
	Name       string // of the client, as its property connection_name states it
	Method     string // for example "basic.publish"
	After      bool   // the broker has handled the method, and its answer is on its way
}

// Fault is what happens to the connection of an Event.
type Fault int

// The faults of a connection.
const (
	None       Fault = iota
	Cut              // the connection ends; what is on its way arrives
	Reset            // the connection ends; what is on its way is lost
	Silent           // nothing arrives any more at either end
	Unanswered       // of a method, before it: it is not handled, and the connection lives, with its heartbeats
	Nack             // of a publish, before it: the message is nacked, and goes nowhere
)

// Broker is a model of a RabbitMQ node with one virtual host. Its methods are safe for concurrent use.
type Broker struct {
	config Config
	began  time.Time

	random sync.Mutex // guards the source: it is used while mu is held, and while it is not
	source *rand.Rand

	mu          sync.Mutex
	exchanges   map[string]*exchange
	queues      map[string]*queue
	bindings    []binding
	policies    map[string]Policy
	connections []*connection
	dials       int
	arrivals    uint64 // messages that queues have got
	names       int    // of queues and consumers that the broker has given
	down        bool
	blocked     bool
	refuse      func(queue string) uint16
	trace       strings.Builder
}

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
	return b.source == o.source && b.target == o.target && b.key == o.key && b.toExchange == o.toExchange &&
		equalTables(b.arguments, o.arguments)
}

// Policy sets arguments of the queues whose names match. Numbers are int64.
type Policy struct {
	Pattern    *regexp.Regexp
	Definition map[string]any // with the names of policies, such as "message-ttl"
}

// New returns a broker that has the predefined exchanges only.
func New(config Config) *Broker {
	if config.Rules.Version == "" {
		config.Rules = Versions[len(Versions)-1]
	}
	if config.ConsumerTimeout == 0 {
		config.ConsumerTimeout = defaultConsumerTimeout
	}
	b := &Broker{
		config: config, began: time.Now(), source: rand.New(rand.NewPCG(config.Seed, 0)),
		exchanges: map[string]*exchange{}, queues: map[string]*queue{}, policies: map[string]Policy{},
	}
	for name, kind := range map[string]string{
		"": "direct", "amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
		"amq.match": "headers",
	} {
		b.exchanges[name] = &exchange{kind: kind, durable: true}
	}
	return b
}

// upTo returns a random duration.
func (b *Broker) upTo(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	b.random.Lock()
	defer b.random.Unlock()
	return time.Duration(b.source.Int64N(int64(most)))
}

// note adds a line to the trace. mu is held.
func (b *Broker) note(format string, args ...any) {
	fmt.Fprintf(&b.trace, "%10.4f  ", time.Since(b.began).Seconds())
	fmt.Fprintf(&b.trace, format, args...)
	b.trace.WriteByte('\n')
}

// Note adds a line to the trace, for what happens outside of the broker.
func (b *Broker) Note(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(format, args...)
}

// Trace returns what has happened, a line each, with the seconds since New.
func (b *Broker) Trace() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trace.String()
}

var errDown = errors.New("connection refused")

// Dial is for the field Dial of an amqp091.Config.
func (b *Broker) Dial(network, host string) (net.Conn, error) {
	conn, _, err := b.DialNumbered(network, host)
	return conn, err
}

// DialNumbered is Dial, and returns the number of the connection.
func (b *Broker) DialNumbered(_, host string) (net.Conn, int, error) {
	latency := func() time.Duration { return b.upTo(b.config.Latency) }
	time.Sleep(latency())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return nil, 0, &net.OpError{Op: "dial", Net: "tcp", Addr: address(host), Err: errDown}
	}
	up, down := newPipe(latency), newPipe(latency)
	b.dials++
	c := &connection{broker: b, number: b.dials, end: end{up, down, host}, channels: map[uint16]*channel{}}
	b.connections = append(b.connections, c)
	b.note("connection %d: opened", c.number)
	go c.serve()
	return end{down, up, host}, c.number, nil
}

// Connections returns the numbers and names of the connections that are open.
func (b *Broker) Connections() map[int]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[int]string{}
	for _, c := range b.connections {
		open[c.number] = c.name
	}
	return open
}

// Disturb makes a fault of a connection, by its number.
func (b *Broker) Disturb(number int, fault Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.connections {
		if c.number == number {
			c.disturb(fault)
			return
		}
	}
}

// Stop ends all connections, and refuses new ones until Start. What is transient is lost.
func (b *Broker) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("the node stops")
	b.down, b.blocked = true, false
	for len(b.connections) > 0 {
		b.connections[0].disturb(Reset)
	}
	for _, name := range sortedKeys(b.queues) {
		q := b.queues[name]
		if !q.durable {
			b.remove(q)
			continue
		}
		q.stop()
	}
}

// Start starts a stopped broker again.
func (b *Broker) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("the node starts")
	b.down = false
	for _, name := range sortedKeys(b.queues) {
		b.queues[name].moveOn()
	}
}

// Block raises an alarm, or ends it: connections that publish are blocked, and not read.
func (b *Broker) Block(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("alarm: %v", on)
	b.blocked = on
	for _, c := range b.connections {
		c.block()
	}
}

// Refuse makes the declares of queues fail where code returns an AMQP error code, such as 541. Nil ends it.
func (b *Broker) Refuse(code func(queue string) uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = code
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
	for _, name := range sortedKeys(b.queues) {
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

// policy returns what the policies set for a queue.
func (b *Broker) policy(q *queue, key string) any {
	for _, name := range sortedKeys(b.policies) {
		if p := b.policies[name]; p.Pattern.MatchString(q.name) && (q.quorum() || !p.forQuorum()) {
			return p.Definition[key] // one policy is in force
		}
	}
	return nil
}

// DeleteQueue deletes a queue with its messages, as another client does, and reports whether it did. With onlyEmpty it
// leaves a queue alone that has a message, also one that a consumer has.
func (b *Broker) DeleteQueue(name string, onlyEmpty bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil || onlyEmpty && len(b.messages(q)) > 0 {
		return false
	}
	b.note("another client deletes queue %s", name)
	b.remove(q)
	return true
}

// ReplaceQueue is DeleteQueue, and declares the queue again with the same arguments and without bindings.
func (b *Broker) ReplaceQueue(name string, onlyEmpty bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[name]
	if q == nil || onlyEmpty && len(b.messages(q)) > 0 {
		return false
	}
	b.note("another client replaces queue %s", name)
	b.remove(q)
	b.queues[name] = newQueue(b, name, q.durable, q.arguments)
	return true
}

// DeclareQueue declares a durable queue, as another client does.
func (b *Broker) DeclareQueue(name string, arguments amqp091.Table) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queues[name] == nil {
		b.queues[name] = newQueue(b, name, true, arguments)
	}
}

// Unbind removes the bindings of a queue to an exchange.
func (b *Broker) Unbind(queue, exchange string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("another client unbinds queue %s from %s", queue, exchange)
	b.unbind(func(o binding) bool { return !o.toExchange && o.target == queue && o.source == exchange })
}

// DeleteExchange deletes an exchange with its bindings.
func (b *Broker) DeleteExchange(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("another client deletes exchange %s", name)
	b.removeExchange(name)
}

// Message is a message as it lies in a queue.
type Message struct {
	Exchange, RoutingKey string
	Headers              amqp091.Table
	Body                 []byte
	Expires              time.Time // zero: never
	Unacknowledged       bool      // a consumer has it
}

// Messages returns the messages of a queue: those that are ready first, then those that consumers have. It changes
// nothing.
func (b *Broker) Messages(queue string) []Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[queue]
	if q == nil {
		return nil
	}
	return b.messages(q)
}

func (b *Broker) messages(q *queue) (all []Message) {
	add := func(m *message, unacknowledged bool) {
		all = append(all, Message{m.exchange, m.key, m.headers(), m.body, m.expires, unacknowledged})
	}
	for _, m := range append(q.leaving[:len(q.leaving):len(q.leaving)], q.ready...) {
		add(m, false)
	}
	for _, c := range b.connections {
		for _, u := range c.unacknowledged(q) {
			add(u.message, true)
		}
	}
	return all
}

// Queues returns the names of the queues, in their order.
func (b *Broker) Queues() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sortedKeys(b.queues)
}

// Consumers returns how many consumers a queue has.
func (b *Broker) Consumers(queue string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.queues[queue]; q != nil {
		return len(q.consumers)
	}
	return 0
}

// Publish publishes a message as another client does, without a connection. It returns how many queues have got it.
func (b *Broker) Publish(exchange, key string, headers amqp091.Table, body []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &message{exchange: exchange, key: key, body: body}
	m.properties[itsHeaders], m.properties[itsMode] = headers, byte(amqp091.Persistent)
	took, _ := m.give(b.route(m), nil)
	return took
}
