package simulation

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

const (
	topic       = "orders"
	handlerName = "billing"
	produced    = "invoices"
	uuidHeader  = "_watermill_message_uuid"
)

// world is one run: a broker, the processes of an app, and what is known of its messages.
type world struct {
	plan      plan
	broker    *model.Broker
	processes []*process
	ledger    *ledger
	counts    []atomic.Int64 // the number of the events that fit each fault
	started   atomic.Bool
	hanging   atomic.Bool  // the next call hangs
	slow      atomic.Value // the id of a message whose calls all hang
	// replaceBound is a work queue that is replaced as soon as it is bound.
	replaceBound atomic.Pointer[string]
	goroutines   int                  // before the run
	connections  []weak.Pointer[byte] // the connections of all processes
}

// run runs a plan in the bubble of the caller.
func run(_ testing.TB, p plan) result {
	w := &world{plan: p, counts: make([]atomic.Int64, len(p.faults)), goroutines: runtime.NumGoroutine()}
	w.broker = model.New(model.Config{Rules: p.rules, Seed: p.seed, Latency: p.latency, Confirms: p.confirms,
		ConsumerTimeout: consumerTimeout, Fault: w.atEvent})
	w.ledger = newLedger(p, w.broker)
	w.processes = make([]*process, p.processes)
	for i := range w.processes {
		w.start(i)
	}
	if p.produces { // as the app does that consumes them
		w.broker.DeclareQueue(produced, amqp091.Table{"x-queue-type": "quorum"})
	}
	w.started.Store(true)
	var running sync.WaitGroup
	for _, f := range p.faults {
		if f.method == "" {
			running.Go(func() { w.inject(f) })
		}
	}
	watching, endWatch := context.WithCancel(context.Background())
	running.Go(func() { w.watch(watching) })
	w.publish()
	w.awaitRest()
	endWatch()
	running.Wait()
	w.checkEnd()
	w.end()
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	return result{w.ledger.violations, w.broker.Trace(), w.connections}
}

// awaitRest waits until nothing is left to do, and a while longer for what must not come then.
func (w *world) awaitRest() {
	last := lastFault(w.plan.faults)
	for end := time.Now().Add(rest); time.Now().Before(end); time.Sleep(5 * time.Second) {
		if time.Since(w.ledger.began) > last && w.settled() {
			w.atRest()
			return
		}
	}
}

// settled reports whether no message is anywhere but at its end.
func (w *world) settled() bool {
	for _, name := range w.broker.Queues() {
		if strings.HasSuffix(name, ".dead") || name == produced {
			continue
		}
		if len(w.broker.Messages(name)) > 0 {
			return false
		}
	}
	return true
}

// hangs reports whether a call hangs. Where one process keeps an order, all calls of a message do that has once: they
// count as failures.
func (w *world) hangs(id string) bool {
	if w.hanging.Swap(false) {
		if !w.plan.ignores() && w.plan.processes == 1 && len(w.plan.schedule) < 3 {
			w.slow.Store(id)
		}
		return true
	}
	return w.slow.Load() == id
}

// tier is one of the tiers, or empty.
func (w *world) tier(pick int) string {
	var tiers []string
	for _, name := range w.broker.Queues() {
		if strings.Contains(name, ".retry.") {
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
	exchange := ""
	if len(w.plan.queues()) > 1 {
		exchange = topic
	}
	for i := range w.plan.messages {
		id := idOf(i)
		key := w.plan.keyOf(id)
		headers := amqp091.Table{uuidHeader: id, "key": key, "count": int64(i)}
		w.ledger.published(id, key, func() int {
			return w.broker.Publish(exchange, topic, amqp091.Publishing{Headers: headers, Body: []byte(id),
				DeliveryMode: amqp091.Persistent})
		})
		time.Sleep(activity / time.Duration(w.plan.messages))
	}
}
