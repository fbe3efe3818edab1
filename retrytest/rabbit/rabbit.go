package rabbit

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

// URI is an address of every Broker, for what needs one beside the AmqpConfig. Any other amqp:// address does as well.
const URI = "amqp://guest:guest@rabbit.test:5672/"

// patience is how long the end of a test waits in real time for clients that are just being closed.
const patience = 5 * time.Second

// Config configures NewWithConfig.
type Config struct {
	// Version is the version of RabbitMQ whose rules the broker follows: "3.10", "4.0" or "4.3". The default is the
	// newest one.
	Version string

	// ConsumerTimeout is how long a consumer may have a message before the broker ends its channel, or on 4.3 the
	// consumer. The default is 30 minutes, as on RabbitMQ.
	ConsumerTimeout time.Duration
}

// Broker is a RabbitMQ of a test. Its methods are safe for concurrent use, but those that can end the test must be
// called from the test's goroutine: each that names a queue, an exchange or a connection ends the test where there is
// none.
type Broker struct {
	t       testing.TB
	model   *model.Broker
	made    time.Time
	bubble  bool
	foreign atomic.Bool // a client has dialed from another bubble
}

// New makes a broker with the rules of the newest version. It stops when the test ends. A client that is still
// connected then is an error.
func New(t testing.TB) *Broker {
	checkT(t)
	t.Helper()
	return NewWithConfig(t, Config{})
}

// NewWithConfig is New with a configuration. An invalid configuration ends the test.
func NewWithConfig(t testing.TB, config Config) *Broker {
	checkT(t)
	t.Helper()
	rules, known := model.Rules{}, []string{}
	for _, each := range model.Versions {
		version := each.Version[:strings.LastIndex(each.Version, ".")]
		known = append(known, strconv.Quote(version))
		if version == config.Version {
			rules = each
		}
	}
	if config.Version != "" && rules.Version == "" {
		t.Fatalf("rabbit: Config.Version is %q: it must be empty or one of %s", config.Version, strings.Join(known, ", "))
	}
	if config.ConsumerTimeout < 0 {
		t.Fatalf("rabbit: Config.ConsumerTimeout is %v: it must be 0 (30 minutes) or more", config.ConsumerTimeout)
	}
	b := &Broker{t: t, made: time.Now(), bubble: inBubble(),
		model: model.New(model.Config{Rules: rules, ConsumerTimeout: config.ConsumerTimeout})}
	if !b.bubble {
		t.Log("rabbit: outside of synctest.Test real time passes: a retry after a minute takes a minute")
	}
	t.Cleanup(b.end)
	return b
}

func checkT(t testing.TB) {
	if t == nil {
		panic("rabbit: t is nil: pass the t of the test, in synctest.Test that of its function")
	}
}

// inBubble reports whether it is called in a bubble. Outside of one, synctest.Wait panics.
func inBubble() (bubble bool) {
	defer func() { bubble = recover() == nil }()
	synctest.Wait()
	return true
}

// end stops the broker. Clients that have just been closed may still be on their way.
func (b *Broker) end() {
	b.t.Helper()
	if b.bubble && !inBubble() {
		b.t.Errorf("rabbit: New was called inside of synctest.Test with the t of a test around it: pass that of its function")
		return
	}
	for until := time.Now().Add(patience); len(b.model.Connections()) > 0 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if open := b.Connections(); len(open) > 0 {
		b.t.Errorf("rabbit: the test is over, and clients are still connected: %s: close them before, the router first "+
			"and then the Connection", names(open))
	}
	b.model.Close()
}

// AmqpConfig returns a configuration of amqp091-go whose connections lead to the broker. It is for the field
// Connection.AmqpConfig of a configuration of watermill-amqp, for deadletter.Config, and for amqp091.DialConfig. Each
// call returns a new one, which may be changed.
func (b *Broker) AmqpConfig() *amqp091.Config { return &amqp091.Config{Dial: b.dial} }

func (b *Broker) dial(network, address string) (net.Conn, error) {
	if now := time.Now(); !b.bubble && now.Before(b.made) {
		err := errors.New("the Broker was made outside of synctest.Test and is used inside: call rabbit.New inside, with " +
			"the t of its function")
		if !b.foreign.Swap(true) {
			b.t.Errorf("rabbit: %v", err)
		}
		return nil, err
	}
	return b.model.Dial(network, address)
}

// Management returns RabbitMQ's management API, as far as this library reads it: overview, whoami, permissions, queues,
// exchanges and bindings. Its figures are those of now. The client of the library needs a server of net/http/httptest
// that was started outside of the bubble.
func (b *Broker) Management() http.Handler { return b.model.Management() }

// Connection is a client's connection to the broker.
type Connection struct {
	number int

	// Name is the client's property connection_name. Those of Connect are named after what they do.
	Name string
}

// Connections returns the connections that are open, the oldest first.
func (b *Broker) Connections() (open []Connection) {
	for number, name := range b.model.Connections() {
		open = append(open, Connection{number, name})
	}
	slices.SortFunc(open, func(a, b Connection) int { return a.number - b.number })
	return open
}

func names(all []Connection) string {
	var text []string
	for _, c := range all {
		text = append(text, strconv.Quote(c.Name))
	}
	return strings.Join(text, ", ")
}

// Cut ends connections, as a network or a load balancer does: what is on its way is lost. Without an argument it ends
// all. Clients can connect again at once.
func (b *Broker) Cut(connections ...Connection) {
	b.t.Helper()
	b.each("Cut", connections, func(number int) { b.model.Disturb(number, model.Reset) })
}

// Silence makes connections half-open: nothing arrives at either end any more, and neither is told. Without an argument
// it does so with all that are open. Clients notice it by their heartbeats, and can connect again.
func (b *Broker) Silence(connections ...Connection) {
	b.t.Helper()
	b.each("Silence", connections, func(number int) { b.model.Disturb(number, model.Silent) })
}

// Slow makes what connections send take so long, each way. Without an argument it does so with all that are open.
func (b *Broker) Slow(toBroker, toClient time.Duration, connections ...Connection) {
	b.t.Helper()
	if toBroker < 0 || toClient < 0 {
		b.t.Fatalf("rabbit: Slow(%v, %v): a time must be 0 or more", toBroker, toClient)
	}
	b.each("Slow", connections, func(number int) { b.model.Slow(number, toBroker, toClient) })
}

// each does something with connections that are open, all of them if there are none.
func (b *Broker) each(what string, some []Connection, do func(number int)) {
	b.t.Helper()
	open := b.Connections()
	if len(open) == 0 {
		b.t.Fatalf("rabbit: %s: no client is connected", what)
	}
	for _, c := range some {
		if !slices.Contains(open, c) {
			b.t.Fatalf("rabbit: %s: connection %q is not open; open are: %s", what, c.Name, names(open))
		}
	}
	if len(some) == 0 {
		some = open
	}
	for _, c := range some {
		do(c.number)
	}
}

// Block raises an alarm, as a broker that is short of memory or disk does: connections that publish are blocked until
// Unblock.
func (b *Broker) Block() { b.model.Block(true) }

// Unblock ends the alarm of Block.
func (b *Broker) Unblock() { b.model.Block(false) }

// Stop stops the node: all connections end, and new ones are refused until Start. Durable queues keep their messages,
// others are gone.
func (b *Broker) Stop() { b.model.Stop() }

// Start starts the node again after Stop.
func (b *Broker) Start() { b.model.Start() }

// SetPolicy sets a policy of queues, under a name of its own. The pattern is a regular expression for their names, and
// the definition has keys as RabbitMQ names them: "max-length", "overflow", "message-ttl". With "max-length" and the
// "overflow" "reject-publish" a full queue refuses messages: publishers get a nack. Of several policies for a queue the
// one whose name is first in the alphabet is in force, and no other.
func (b *Broker) SetPolicy(name, pattern string, definition map[string]any) {
	b.t.Helper()
	p, err := model.NewPolicy(pattern, definition)
	if err != nil {
		b.t.Fatalf("rabbit: SetPolicy: %v", err)
	}
	b.model.SetPolicy(name, p)
}

// DeletePolicy deletes a policy of SetPolicy, if there is one.
func (b *Broker) DeletePolicy(name string) { b.model.SetPolicy(name, model.Policy{}) }

// DeleteQueue deletes a queue with its messages, as an operator does. Its consumers are cancelled.
func (b *Broker) DeleteQueue(queue string) {
	b.t.Helper()
	b.mustExist("DeleteQueue", queue)
	b.model.DeleteQueue(queue, false)
}

// DeleteExchange deletes an exchange with its bindings, as an operator does.
func (b *Broker) DeleteExchange(exchange string) {
	b.t.Helper()
	all := b.model.Exchanges()
	if !slices.Contains(all, exchange) || exchange == "" || strings.HasPrefix(exchange, "amq.") {
		b.t.Fatalf("rabbit: DeleteExchange: there is no exchange %q that can be deleted; exchanges: %q", exchange, all)
	}
	b.model.DeleteExchange(exchange)
}

// Queues returns the names of the queues, in the order of the alphabet.
func (b *Broker) Queues() []string { return b.model.Queues() }

// Consumers returns how many consumers a queue has.
func (b *Broker) Consumers(queue string) int {
	b.t.Helper()
	b.mustExist("Consumers", queue)
	return b.model.Consumers(queue)
}

// Publish publishes a message as another program does, and returns how many queues have got it. The app's Publisher
// needs no call of it.
func (b *Broker) Publish(exchange, routingKey string, p amqp091.Publishing) (queues int) {
	b.t.Helper()
	if all := b.model.Exchanges(); !slices.Contains(all, exchange) {
		b.t.Fatalf("rabbit: Publish: there is no exchange %q; exchanges: %q", exchange, all)
	}
	return b.model.Publish(exchange, routingKey, p)
}

// Trace returns what has happened on the broker, a line for each event, with the seconds since New.
func (b *Broker) Trace() string { return b.model.Trace() }

// mustExist ends the test where there is no such queue.
func (b *Broker) mustExist(what, queue string) {
	b.t.Helper()
	if all := b.Queues(); !slices.Contains(all, queue) {
		b.t.Fatalf("rabbit: %s: there is no queue %q; queues: %q", what, queue, all)
	}
}
