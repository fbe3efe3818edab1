package simulation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/simulation/model"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	topic       = "orders"
	handlerName = "billing"
	produced    = "invoices"
	uuidHeader  = "_watermill_message_uuid"
)

// world is one run: a broker, the processes of an app, and what is known of its messages.
type world struct {
	t         testing.TB
	plan      plan
	broker    *model.Broker
	processes []*process
	ledger    *ledger
	events    atomic.Int64
	over      []atomic.Bool // the faults that have happened at an event
	started   atomic.Bool
}

// run runs a plan in the bubble of the caller, and returns what was violated.
func run(t testing.TB, p plan) (violations []string, trace string) {
	w := &world{t: t, plan: p, ledger: newLedger(p), over: make([]atomic.Bool, len(p.faults))}
	w.broker = model.New(model.Config{
		Rules: p.rules, Seed: p.seed, Latency: p.latency, Confirms: p.confirms, Fault: w.atEvent,
	})
	w.ledger.note = w.broker.Note
	w.processes = make([]*process, p.processes)
	for i := range w.processes {
		w.start(i)
	}
	w.declareProduced()
	w.started.Store(true)
	var running sync.WaitGroup
	for _, f := range p.faults {
		if f.event == 0 {
			running.Go(func() { w.inject(f) })
		}
	}
	watching, endWatch := context.WithCancel(context.Background())
	running.Go(func() { w.watch(watching) })
	w.publish()
	time.Sleep(rest)
	endWatch()
	running.Wait()
	w.ledger.check(w)
	for _, p := range w.processes {
		p.stop()
	}
	w.broker.Stop()
	return w.ledger.violations, w.broker.Trace()
}

func (w *world) work() string { return topic }

// tier is one of the tiers, or empty.
func (w *world) tier(pick int) string {
	var tiers []string
	for _, name := range w.broker.Queues() {
		if len(name) > len(topic+".retry.") && name[:len(topic+".retry.")] == topic+".retry." {
			tiers = append(tiers, name)
		}
	}
	if len(tiers) == 0 {
		return ""
	}
	return tiers[pick%len(tiers)]
}

// publish publishes the messages as another program does. What it publishes while there is no work queue is no message.
func (w *world) publish() {
	for i := range w.plan.messages {
		id := fmt.Sprintf("%03d", i)
		key := fmt.Sprint("k", w.plan.hash(id+"key")%uint64(w.plan.keys))
		headers := amqp091.Table{uuidHeader: id, "key": key}
		w.ledger.published(id, key, func() bool { return w.broker.Publish("", topic, headers, []byte(id)) == 1 })
		time.Sleep(activity / time.Duration(w.plan.messages))
	}
}

// process is a process of the app.
type process struct {
	number     int
	world      *world
	connection retry.Connection
	stopRouter context.CancelFunc
	done       chan struct{}

	ending atomic.Bool // a fault ends it, and starts another one in its place

	mu    sync.Mutex
	dead  bool
	conns []int // of the broker
}

// start starts a process, in the place of one that has ended.
func (w *world) start(number int) {
	p := &process{number: number, world: w, done: make(chan struct{})}
	w.processes[number] = p
	for { // as a supervisor does
		err := p.run()
		if err == nil {
			return
		}
		w.broker.Note("process %d did not start: %v", number, err)
		time.Sleep(time.Second)
	}
}

var errKilled = errors.New("the process is killed")

// dial is the app's network.
func (p *process) dial(network, host string) (net.Conn, error) {
	p.mu.Lock()
	dead := p.dead
	p.mu.Unlock()
	if dead {
		return nil, errKilled
	}
	conn, number, err := p.world.broker.DialNumbered(network, host)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, number)
	return conn, err
}

func (p *process) run() error {
	w := p.world
	own := amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/")
	own.Connection.AmqpConfig = &amqp091.Config{Dial: p.dial}
	logger := watermill.LoggerAdapter(watermill.NopLogger{})
	if testing.Verbose() {
		logger = logTo{w.broker, p.number}
	}
	connection, err := config.Connect(config.Config{
		AMQP: own, Policy: retry.Policy{Schedule: w.plan.schedule},
	}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	options := retry.Options{Concurrency: w.plan.concurrency}
	if w.plan.partitions > 0 {
		options.Order = retry.Order{Key: func(m *message.Message) string { return m.Metadata.Get("key") },
			Partitions: w.plan.partitions}
	}
	if w.plan.produces {
		connection.AddHandler(router, handlerName, topic, produced, p.produce, options)
	} else {
		connection.AddConsumerHandler(router, handlerName, topic, p.handle, options)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.connection, p.stopRouter = connection, stop
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err = <-ended:
		// Watermill leaves goroutines of handlers behind that have not begun. So the app goes on to begin.
		for tries := 0; err != nil; err = router.RunHandlers(ctx) {
			if tries++; tries > 1000 {
				panic(fmt.Sprintf("%v: process %d does not start: %v\n%s", w.plan, p.number, err, w.broker.Trace()))
			}
			w.broker.Note("process %d did not start: %v", p.number, err)
			time.Sleep(time.Second)
		}
		context.AfterFunc(ctx, func() { ended <- router.Close() })
	}
	go func() {
		defer close(p.done)
		<-ended // after the end of ctx: Close of the router, while handlers run, holds a mutex that a bubble cannot wait for
		_ = connection.Close()
	}()
	return nil
}

// handle is the app's handler.
func (p *process) handle(msg *message.Message) error {
	l := p.world.ledger
	record, _ := retry.ReadRecord(msg.Metadata)
	id := string(msg.Payload)
	l.called(p, msg, record)
	time.Sleep(p.world.plan.lasts(id, record.Failures))
	if record.Failures < p.world.plan.failures(id) {
		l.failed(p, id, record)
		return fmt.Errorf("failure %d of message %s", record.Failures+1, id)
	}
	l.succeeded(p, id)
	return nil
}

func (p *process) produce(msg *message.Message) ([]*message.Message, error) {
	if err := p.handle(msg); err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage("of-"+msg.UUID, msg.Payload)}, nil
}

// declareProduced declares the queue of the produced messages, as the app that consumes them does.
func (w *world) declareProduced() {
	if w.plan.produces {
		w.broker.DeclareQueue(produced, amqp091.Table{"x-queue-type": "quorum"})
	}
}

// kill ends a process at once: nothing that it still does has an effect.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.disturb(model.Reset)
	p.stopRouter()
}

// stop ends a process as a deployment does.
func (p *process) stop() {
	p.stopRouter()
	<-p.done
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *process) disturb(f model.Fault) {
	p.mu.Lock()
	conns := p.conns
	p.mu.Unlock()
	for _, number := range conns {
		p.world.broker.Disturb(number, f)
	}
}

// disturbOne disturbs one of the connections that are open.
func (p *process) disturbOne(pick int, f model.Fault) {
	open := p.world.broker.Connections()
	p.mu.Lock()
	var own []int
	for _, number := range p.conns {
		if _, is := open[number]; is {
			own = append(own, number)
		}
	}
	p.mu.Unlock()
	if len(own) > 0 {
		p.world.broker.Disturb(own[pick%len(own)], f)
	}
}

// logTo writes the log of a process into the trace.
type logTo struct {
	broker  *model.Broker
	process int
}

func (l logTo) Error(msg string, err error, _ watermill.LogFields) {
	l.broker.Note("process %d: ERROR %s: %v", l.process, msg, err)
}
func (l logTo) Info(msg string, _ watermill.LogFields) {
	l.broker.Note("process %d: %s", l.process, msg)
}
func (l logTo) Debug(string, watermill.LogFields)                {}
func (l logTo) Trace(string, watermill.LogFields)                {}
func (l logTo) With(watermill.LogFields) watermill.LoggerAdapter { return l }
