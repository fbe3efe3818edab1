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
)

// Config is how a Broker behaves.
type Config struct {
	Rules           Rules         // the last of Versions where it is zero
	Seed            uint64        // the seed of all random choices
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
	Name       string // the client's name, as its property connection_name states it
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
	Unanswered       // before a method: it is not handled, and the connection lives, with its heartbeats
	Nack             // before a publish: the message is nacked, and goes nowhere
)

// Broker is a model of a RabbitMQ node with one virtual host. Its methods are safe for concurrent use.
type Broker struct {
	config Config
	began  time.Time

	random sync.Mutex // guards the source: it is used while mu is held, and while it is not
	source *rand.Rand

	serving sync.WaitGroup

	mu          sync.Mutex
	exchanges   map[string]*exchange
	queues      map[string]*queue
	bindings    []binding
	policies    map[string]Policy
	connections map[int]*connection
	dials       int
	arrivals    uint64 // messages that queues have got
	names       int    // the number of names of queues and consumers that the broker has given
	down        bool
	blocked     bool
	refuse      func(queue string) uint16
	defaultType string         // the type of queues that are declared without one; empty: classic
	withheld    *regexp.Regexp // the queues whose confirms wait
	takes       bool           // these take what is published
	answers     []func()       // the answers that wait
	trace       strings.Builder
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
		config: config, began: time.Now(), source: rand.New(rand.NewPCG(config.Seed, 0)), exchanges: map[string]*exchange{},
		queues: map[string]*queue{}, policies: map[string]Policy{}, connections: map[int]*connection{},
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
	b.locked(func() { b.note(format, args...) })
}

// Trace returns what has happened, a line each, with the seconds since New.
func (b *Broker) Trace() (trace string) {
	b.locked(func() { trace = b.trace.String() })
	return trace
}

func (b *Broker) locked(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	do()
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
	b.connections[c.number] = c
	b.note("connection %d: opened", c.number)
	b.serving.Go(c.serve)
	return end{down, up, host}, c.number, nil
}

// Connections returns the numbers and names of the connections that are open, and not silent.
func (b *Broker) Connections() map[int]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[int]string{}
	for number, c := range b.connections {
		if !c.silent {
			open[number] = c.name
		}
	}
	return open
}

// Disturb makes a fault of a connection, by its number.
func (b *Broker) Disturb(number int, fault Fault) {
	b.locked(func() {
		if c := b.connections[number]; c != nil {
			c.disturb(fault)
		}
	})
}

// Slow makes all that a connection sends from now on take longer, each way so long.
func (b *Broker) Slow(number int, toBroker, toClient time.Duration) {
	b.locked(func() {
		if c := b.connections[number]; c != nil {
			b.note("connection %d: %v to the broker, %v to the client", number, toBroker, toClient)
			c.end.in.setSlow(toBroker)
			c.end.out.setSlow(toClient)
		}
	})
}

// Stop ends all connections, and refuses new ones until Start. What is transient is lost.
func (b *Broker) Stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("the node stops")
	b.down, b.blocked = true, false
	for _, number := range sorted(b.connections) {
		b.connections[number].disturb(Reset)
	}
	for _, name := range sorted(b.queues) {
		if q := b.queues[name]; q.durable {
			q.stop()
		} else {
			b.remove(q)
		}
	}
}

// Start starts a stopped broker again.
func (b *Broker) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("the node starts")
	b.down = false
	for _, name := range sorted(b.queues) {
		b.queues[name].moveOn()
	}
}

// Close stops the broker, and returns when it has ended all that it did.
func (b *Broker) Close() {
	b.Stop()
	b.serving.Wait()
}

// Block raises an alarm, or ends it: connections that publish are blocked, and not read.
func (b *Broker) Block(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note("alarm: %v", on)
	b.blocked = on
	for _, number := range sorted(b.connections) {
		b.connections[number].block()
	}
}

// Refuse makes the declares of queues fail where code returns an AMQP error code, such as 541. Nil ends it.
func (b *Broker) Refuse(code func(queue string) uint16) { b.locked(func() { b.refuse = code }) }

// Withhold makes queues answer no publisher until Release. They take what is published, and confirm it then, or do not,
// and nack it.
func (b *Broker) Withhold(queues *regexp.Regexp, takes bool) {
	b.locked(func() {
		b.note("confirms of %v are withheld, taken: %v", queues, takes)
		b.withheld, b.takes = queues, takes
	})
}

// Release ends Withhold.
func (b *Broker) Release() {
	b.locked(func() {
		b.note("%d confirms come", len(b.answers))
		for _, answer := range b.answers {
			answer()
		}
		b.withheld, b.answers = nil, nil
	})
}
