package simulation

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/retry"
)

// process is a process of the app.
type process struct {
	number     int
	world      *world
	logger     *log
	connection retry.Connection // nil with a builder
	router     *message.Router
	close      func() error
	ctx        context.Context
	stopRouter context.CancelFunc
	closing    chan struct{} // its handlers have ended
	closed     chan struct{} // its router has
	done       chan struct{}

	ending atomic.Bool // a fault ends it, and starts another one in its place
	dead   atomic.Bool // nothing that it does has an effect
	lostAt atomic.Int64
	// unsentAt is when its connection that publishes was lost.
	unsentAt atomic.Int64
	// cutsCall: its connections are lost within its next call.
	cutsCall atomic.Bool
	// pausing: a fault pauses a handler, and resumes it.
	pausing atomic.Bool

	mu       sync.Mutex
	cutOff   bool                 // it cannot dial
	calls    map[string]int       // the number of calls that run, by work queue
	callsOf  map[string]int       // the number of calls that run, by work queue and key
	slowKeys map[string]bool      // the keys that were slow a second ago at the most, by work queue and key
	paused   map[string]bool      // handlers that take no messages, by the work queue
	held     map[string]int       // messages that are held, by the work queue
	half     map[string]time.Time // since when these are half of the places
	open     map[string]int       // calls whose outcome is not known, by the work queue
	conns    []int                // the connections, as the broker numbers them
	handlers map[string]*message.Handler
}

// start starts a process, in the place of one that has ended.
func (w *world) start(number int) {
	for { // as a supervisor does
		p := &process{number: number, world: w, closing: make(chan struct{}), closed: make(chan struct{}),
			done: make(chan struct{}), handlers: map[string]*message.Handler{}, calls: map[string]int{},
			callsOf: map[string]int{}, paused: map[string]bool{}, held: map[string]int{},
			half: map[string]time.Time{}, open: map[string]int{}}
		p.logger = newLog(p)
		err := p.run()
		if err == nil {
			w.ledger.mu.Lock()
			w.processes[number] = p
			w.ledger.mu.Unlock()
			return
		}
		w.broker.Note("process %d did not start: %v", number, err)
		time.Sleep(time.Second)
	}
}

// running returns the process with this number. The number may be too high.
func (w *world) running(number int) *process {
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return w.processes[number%len(w.processes)]
}

var errKilled = errors.New("the process is killed")

// dial is the app's network.
func (p *process) dial(network, host string) (net.Conn, error) {
	p.mu.Lock()
	cutOff := p.cutOff
	p.mu.Unlock()
	if cutOff {
		return nil, errKilled
	}
	conn, number, err := p.world.broker.DialNumbered(network, host)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, number)
	return conn, err
}

func (p *process) config() config.Config {
	const uri = "amqp://guest:guest@model:5672/"
	plan := p.world.plan
	own := amqp.NewDurableQueueConfig(uri)
	if len(plan.queues()) > 1 {
		own = amqp.NewDurablePubSubConfig(uri, nil)
	}
	own.Connection.AmqpConfig = &amqp091.Config{Dial: p.dial}
	own.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: 100 * time.Millisecond,
		BackoffMultiplier: 2, BackoffMaxInterval: 5 * time.Second}
	policy := retry.Policy{Schedule: plan.schedule, Rules: rules, MaxHold: plan.maxHold, Breaker: plan.breakerOf()}
	if plan.shape == tierGroup {
		policy.TierGroup, policy.ExtraTiers = "shared", plan.schedule[:1]
	}
	return config.Config{AMQP: own, Policy: policy}
}

func (p *process) run() (err error) {
	if p.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}); err != nil {
		return err
	}
	p.addLast()
	if p.world.plan.shape == builder {
		err = p.build()
	} else {
		err = p.connect()
	}
	if err != nil {
		return err
	}
	p.ctx, p.stopRouter = context.WithCancel(context.Background())
	ended, began := make(chan error, 1), time.Now()
	go func() { ended <- p.router.Run(p.ctx) }()
	var failed error
	select {
	case <-p.router.Running():
	case failed = <-ended:
		err = failed
		if took := time.Since(began); isBusy(err) && took < startsFor && p.world.plan.shape != builder {
			p.world.ledger.violated("", "process %d ends after %v, because the broker is busy: %v", p.number, took, err)
		}
		// Watermill leaves goroutines of handlers behind that have not begun. So the app goes on to begin.
		for tries := 0; err != nil; err = p.router.RunHandlers(p.ctx) {
			if tries++; tries > 200 {
				p.world.ledger.violated("", "process %d does not start: %v", p.number, err)
				break
			}
			p.world.broker.Note("process %d did not start: %v", p.number, err)
			time.Sleep(time.Second)
		}
	}
	go p.end()
	if failed != nil && len(p.handlers) > 1 { // Run has ended those that had begun
		p.stop()
		return failed
	}
	return nil
}

// startsFor is how long what the broker cannot declare is tried again at the start: 30 s, without the last pause.
const startsFor = 25 * time.Second

func isBusy(err error) bool {
	var refused *amqp091.Error
	return errors.As(err, &refused) && refused.Code == amqp091.InternalError
}

// connect makes the app with Connect.
func (p *process) connect() (err error) {
	if p.connection, err = config.Connect(p.config(), p.logger); err != nil {
		return err
	}
	p.close = p.connection.Close
	p.world.ledger.mu.Lock()
	p.world.connections = append(p.world.connections, weakly(p.connection))
	p.world.ledger.mu.Unlock()
	p.connection.Observe(observer{process: p})
	for _, queue := range p.world.plan.queues() {
		p.add(queue)
	}
	return nil
}

// add adds the handler of a work queue.
func (p *process) add(queue string) {
	plan := p.world.plan
	options := retry.Options{Concurrency: plan.concurrency, Prefetch: plan.prefetch}
	if len(plan.queues()) > 1 {
		options.Group = queue[len(topic)+1:]
	}
	if plan.shape == keepsOrder {
		options.Order = retry.Order{Key: func(m *message.Message) string { return m.Metadata.Get("key") },
			Partitions: plan.partitions, ConsumerTimeout: consumerTimeout}
	}
	var added *message.Handler
	if plan.produces {
		added = p.connection.AddHandler(p.router, handlerName, topic, produced, p.produce, options)
	} else {
		handle := func(msg *message.Message) error { return p.handle(queue, msg) }
		added = p.connection.AddConsumerHandler(p.router, handlerOf(queue), topic, handle, options)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handlers[queue] = added
}

// handlerOf is the name of the handler of a work queue.
func handlerOf(queue string) string { return handlerName + queue[len(topic):] }

// queueOf is the work queue of a handler.
func queueOf(handler string) string { return topic + strings.TrimPrefix(handler, handlerName) }

// build makes the app with the builder.
func (p *process) build() error {
	made, err := config.NewBuilder(p.config())
	if err != nil {
		return err
	}
	made.Observe(observer{process: p})
	retries, err := made.NewTieredRetry(p.logger)
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(made.SubscriberConfig(), watermill.NopLogger{})
	if err != nil {
		_ = made.Close()
		return err
	}
	p.close = func() error { return errors.Join(subscriber.Close(), made.Close()) }
	handle := func(msg *message.Message) error { return p.handle(topic, msg) }
	p.handlers[topic] = p.router.AddConsumerHandler(handlerName, topic, subscriber, handle)
	p.handlers[topic].AddMiddleware(retries)
	return nil
}

// handle is the app's handler.
func (p *process) handle(queue string, msg *message.Message) error {
	l, plan := p.world.ledger, p.world.plan
	record, _ := retry.ReadRecord(msg.Metadata)
	id := string(msg.Payload)
	is := p.limits(queue, plan.keyOf(id))
	first, f := l.called(p, queue, msg, record, is)
	msg.Metadata, msg.Payload = message.Metadata{"scratch": id}, nil // what a handler replaces is not in the copy
	p.limited(queue, id)
	p.keepsShare(queue, id, is)
	if plan.tenants == nil || !plan.mayHave(withheld) { // else a message may wait for a tier before its call
		p.holds(queue, id)
	}
	defer p.leaves(queue, id)
	if p.world.hangs(id) {
		l.outlasts(queue, id, record)
		l.lost(hangsFor + time.Minute)
		ends := msg.Context().Done()
		if plan.ignores() {
			ends = nil
		}
		select {
		case <-ends:
		case <-time.After(hangsFor):
		}
	}
	if p.cutsCall.Swap(false) {
		l.disturbed(0)
		l.lost(0)
		p.lostAt.Store(time.Now().UnixNano())
		p.disturb(model.Reset)
		time.Sleep(time.Second)
	}
	time.Sleep(plan.lasts(id, record, time.Since(l.began)))
	err := plan.outcome(id, record, first, time.Since(l.began))
	if f != nil {
		f.alarmed = plan.mayHave(alarm) && p.alarmed()
	}
	l.ended(p, queue, id, record, err, f)
	return plan.fate(id).end(err)
}

// alarmed reports whether what publishes copies knows of an alarm: the broker tells a connection when that publishes.
func (p *process) alarmed() bool {
	return p.connection != nil && slices.ContainsFunc(p.connection.Health().Links, func(l retry.LinkHealth) bool {
		return l.Name == "publishing" && l.Blocked
	})
}

// produce is a handler that passes the metadata of its message on.
func (p *process) produce(msg *message.Message) ([]*message.Message, error) {
	of := message.NewMessage("of-"+msg.UUID, []byte(msg.UUID))
	of.Metadata = maps.Clone(msg.Metadata)
	if err := p.handle(topic, msg); err != nil {
		return nil, err
	}
	return []*message.Message{of}, nil
}

// kill ends a process at once.
func (p *process) kill() {
	p.mu.Lock()
	p.cutOff = true
	p.mu.Unlock()
	p.disturb(model.Reset)
	p.dead.Store(true)
	p.stopRouter()
}

// stop ends a process as a deployment does.
func (p *process) stop() {
	p.stopRouter()
	most := p.world.plan.closes()
	select {
	case <-p.done:
	case <-time.After(most):
		p.world.ledger.violated("", "process %d does not end within %v", p.number, most)
	}
}

// restartHandler stops the handler of a queue and adds it again.
func (p *process) restartHandler(queue string) {
	p.mu.Lock()
	handler := p.handlers[queue]
	p.mu.Unlock()
	if p.connection == nil || handler == nil || p.ending.Swap(true) {
		return
	}
	defer p.ending.Store(false)
	select {
	case <-handler.Started():
	case <-time.After(closes):
		return
	}
	handler.Stop()
	<-handler.Stopped()
	p.add(queue)
	for err := p.router.RunHandlers(p.ctx); err != nil && p.ctx.Err() == nil; err = p.router.RunHandlers(p.ctx) {
		p.world.broker.Note("process %d did not start its handler: %v", p.number, err)
		time.Sleep(time.Second)
	}
}

func (p *process) disturb(f model.Fault) {
	p.mu.Lock()
	conns := p.conns
	p.mu.Unlock()
	for _, number := range conns {
		p.world.broker.Disturb(number, f)
	}
}

// slowBy is how long everything takes that a slow connection sends one way.
const slowBy = 2 * time.Second

// slow makes the connections of a process slow one way.
func (p *process) slow(f fault) {
	toBroker, toClient := slowBy, time.Duration(0)
	if f.whole() {
		toBroker, toClient = toClient, toBroker
	}
	p.mu.Lock()
	conns := p.conns
	p.mu.Unlock()
	for _, number := range conns {
		p.world.broker.Slow(number, toBroker, toClient)
	}
	time.Sleep(f.lasts)
	for _, number := range conns {
		p.world.broker.Slow(number, 0, 0)
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
