package simulation

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// fault is something that happens once: what goes wrong, or what an operator or a deployment does.
type fault struct {
	kind string
	at   time.Duration // since the start
	// method is that of a client at which the fault happens, in place of at: before or after the broker has handled it,
	// and not before it has happened so often.
	method string
	after  bool
	nth    int
	lasts  time.Duration
	pick   int // chooses the connection, process or queue
}

// fills returns the pattern of the queues that are full, or do not answer.
func (f fault) fills() string {
	return []string{tiersFull, `\.order\.\d|^` + produced, deadFull}[f.pick%3]
}

const tiersFull, deadFull = `\.retry\.`, `\.dead$`

// whole reports whether a fault is not only a part of what it can be.
func (f fault) whole() bool { return f.pick/4%2 == 0 }

// again reports whether a handler that is paused was paused a moment before, and whether connections are lost within a
// call.
func (f fault) again() bool { return f.pick/128%2 == 0 }

// deploys reports whether a process is stopped and started in the middle of a fault.
func (f fault) deploys() bool {
	switch f.kind {
	case full, restart, noDeclare, alarm, withheld:
		return f.pick/8%2 == 0
	}
	return false
}

func (f fault) String() string {
	if f.method != "" {
		return fmt.Sprintf("%s %s %s %d", f.kind, map[bool]string{true: "after", false: "before"}[f.after], f.method, f.nth)
	}
	return fmt.Sprintf("%s at %v for %v", f.kind, f.at.Round(time.Millisecond), f.lasts.Round(time.Millisecond))
}

// The kinds of faults.
const (
	cutAt       = "cut"   // what is on its way arrives
	resetAt     = "reset" // what is on its way is lost
	nackAt      = "nack"
	cutBoth     = "all connections of a process lost"
	halfOpen    = "half-open connection"
	frozen      = "process cut off"
	restart     = "node restart"
	alarm       = "alarm"
	kill        = "process killed"
	deploy      = "process stopped and started"
	rolling     = "rolling deployment"
	readd       = "handler stopped and added"
	hangs       = "call outlasts the consumer timeout"
	redrive     = "redrive"
	looks       = "looks at dead letters"
	unbind      = "return bindings removed"
	noTier      = "tier deleted"                // while it is empty
	noDead      = "dead letters' queue deleted" // while it is empty
	replace     = "work queue replaced"         // while it is empty
	noWork      = "work queue deleted"          // while it is empty
	noReturn    = "return exchange deleted"
	noExchange  = "retry exchange deleted"
	noDeclare   = "declares answer 541"
	pause       = "pause and resume"
	full        = "queues full"
	noPart      = "partition unbound"
	partDeleted = "partition deleted" // while it is empty
	purge       = "queue purged"      // a queue that no consumer has
	slow        = "slow one way"
	withheld    = "confirms withheld"
)

const (
	consumerTimeout = 2 * time.Minute
	hangsFor        = 3 * time.Minute
	// refused is how long dead letters can be refused after there is room: by a channel that has refused one, and the
	// publisher opens another one 10 s later (publisher/session.go). Meanwhile, docs/outcomes.md has: "While half of the
	// places are held, the handler takes no new messages."
	refused = 10 * time.Second
)

// kinds have their weights.
var kinds = map[string]int{
	cutAt: 4, resetAt: 4, nackAt: 2, cutBoth: 2, halfOpen: 1, frozen: 1, restart: 2, alarm: 3, kill: 2, deploy: 2,
	rolling: 1, readd: 2, hangs: 1, redrive: 2, looks: 1, noDead: 1, replace: 1, noDeclare: 1, pause: 2, full: 3,
	purge: 1, slow: 2, withheld: 7,
}

// own are the kinds of faults that only some shapes have, with their weights.
var own = map[bool]map[string]int{ // by whether it keeps an order
	false: {unbind: 3, noTier: 2, noWork: 1, noReturn: 1, noExchange: 1},
	true:  {noWork: 1, noExchange: 1, noPart: 2, partDeleted: 2, alarm: 5, pause: 4, full: 6, hangs: 5, cutBoth: 4},
}

func (p plan) kinds() map[string]int {
	all := maps.Clone(kinds)
	maps.Copy(all, own[p.shape == keepsOrder])
	switch {
	case p.shape == tierGroup:
		all[noTier] = 6
	case p.produces:
		all[full], all[nackAt] = 9, 6
	}
	return all
}

// methods are those at which a connection is lost, with their weights.
var methods = map[string]int{
	"basic.publish": 6, "basic.ack": 6, "basic.consume": 1, "basic.qos": 1, "basic.cancel": 1, "basic.nack": 1,
	"queue.declare": 2, "queue.bind": 1, "exchange.declare": 1, "exchange.bind": 1, "channel.open": 1, "channel.close": 1,
	"confirm.select": 1, "connection.open": 1, "connection.start-ok": 1, "connection.tune-ok": 1, "connection.close": 1,
}

// drawFault draws the fault with a number.
func (p plan) drawFault(number int) fault {
	name := fmt.Sprint("fault ", number)
	f := fault{
		kind: drawWeighted(p, name, p.kinds()), at: p.upTo(activity*3/4, name, "at"),
		lasts: p.upTo(10*time.Second, name, "lasts"), pick: int(p.number(name, "pick") % 1000),
	}
	switch f.kind {
	case withheld:
		if p.number(name, "long")%4 > 0 { // beyond PublishTimeout
			f.lasts = publishTimeout + p.upTo(longest-publishTimeout, name, "longer")
		}
		return f
	case unbind, replace, noReturn, noExchange:
		if p.shape == builder { // what is bound to the work queue is declared when it is consumed
			f.kind = cutBoth
		}
		return f
	case hangs:
		f.lasts = hangsFor
		return f
	case kill:
		if p.shape == builder { // the Close of watermill-amqp leaves a goroutine behind where it cannot connect
			f.kind = deploy
		}
		return f
	case cutAt, resetAt:
		f.method, f.after = drawWeighted(p, name+" method", methods), p.number(name, "after")%2 == 0
	case nackAt:
		f.method = "basic.publish"
	default:
		return f
	}
	often := 10
	if methods[f.method] > 2 {
		often = p.messages
	}
	f.at, f.lasts, f.nth = 0, 0, 1+int(p.number(name, "nth")%uint64(often))
	return f
}

// atEvent is the Fault of the model.
func (w *world) atEvent(e model.Event) model.Fault {
	if !w.started.Load() { // Connect must succeed
		return model.None
	}
	if e.Method == "queue.bind" && e.After {
		if queue := w.replaceBound.Swap(nil); queue != nil {
			w.ledger.replacedAgain()
			go w.broker.ReplaceQueue(*queue, true)
		}
	}
	if e.Method == "channel.close-ok" && !e.After && w.plan.mayHave(noExchange) { // by a publish to it, however late
		w.ledger.lost(0)
	}
	if (e.Method == "channel.close" || e.Method == "connection.close") && !e.After && e.Name == "watermill-retry mover" {
		w.ledger.moverEnds()
	}
	for i, f := range w.plan.faults {
		if f.method != e.Method || f.after != e.After || w.counts[i].Add(1) != int64(f.nth) {
			continue
		}
		switch f.kind {
		case nackAt:
			w.ledger.disturbed(0)
			return model.Nack
		case cutAt:
			w.ledger.disturbed(0)
			w.ledger.lost(0)
			return model.Cut
		default:
			w.ledger.disturbed(0)
			w.ledger.lost(0)
			return model.Reset
		}
	}
	return model.None
}

// lastFault is when the last fault with a time has begun.
func lastFault(faults []fault) (last time.Duration) {
	for _, f := range faults {
		last = max(last, f.at+f.lasts)
	}
	return last
}

// loses has the faults that lose connections, and until when after their end.
var loses = map[string]time.Duration{
	cutBoth: 0, halfOpen: notices, frozen: notices, restart: 0, kill: 0, noDeclare: time.Second, noExchange: unbound,
}

// inject makes a fault that has a time.
func (w *world) inject(f fault) {
	time.Sleep(f.at)
	w.broker.Note("fault: %v", f)
	if f.kind != full || f.fills() != tiersFull { // a copy goes to another tier, or is a dead letter
		w.ledger.disturbed(f.lasts)
	}
	if lasts, loses := loses[f.kind]; loses {
		w.ledger.lost(f.lasts + lasts)
	}
	over := w.meanwhile(f)
	w.replaceNext(f)
	w.make(f)
	<-over
	w.broker.Note("fault is over: %s", f.kind)
	w.ledger.disturbed(0)
}

// replaceNext makes another client replace a work queue between the bindings and the consumer of what begins again.
func (w *world) replaceNext(f fault) {
	switch f.kind {
	case cutBoth, kill, deploy, replace:
		if queues := w.plan.queues(); f.whole() && w.plan.shape != builder {
			w.replaceBound.Store(&queues[f.pick%len(queues)])
		}
	}
}

// meanwhile makes a deployment within some of the faults that last. over is closed when it has ended.
func (w *world) meanwhile(f fault) (over chan struct{}) {
	over = make(chan struct{})
	if !f.deploys() {
		close(over)
		return over
	}
	go func() {
		defer close(over)
		time.Sleep(f.lasts / 2)
		if f.kind == alarm && w.plan.shape == keepsOrder { // what is moved then, the broker gets twice
			w.ledger.lost(f.lasts)
		}
		w.replace(w.running(f.pick+1), fault{kind: deploy})
	}()
	return over
}

func (w *world) make(f fault) {
	p := w.running(f.pick)
	queues := w.plan.queues()
	queue := queues[f.pick%len(queues)]
	switch f.kind {
	case cutBoth:
		if p.cutsCall.Store(f.again()); !f.again() {
			p.lostAt.Store(time.Now().UnixNano())
			p.disturb(model.Reset)
		}
	case halfOpen:
		w.ledger.disturbed(notices)
		p.disturbOne(f.pick, model.Silent)
	case frozen:
		w.ledger.disturbed(notices)
		w.ledger.lost(f.lasts + notices) // the loss of its other connection is noticed at another time
		p.disturb(model.Silent)
	case restart:
		w.broker.Stop()
		time.Sleep(f.lasts)
		w.broker.Start()
	case alarm:
		w.broker.Block(true)
		w.ledger.alarmed(time.Now())
		w.ledger.blocked(f.lasts)
		w.ledger.confirmsNot(f.lasts)
		time.Sleep(f.lasts)
		w.ledger.alarmed(time.Time{})
		w.broker.Block(false)
	case kill, deploy:
		w.replace(p, f)
	case rolling:
		for number := range w.processes {
			w.replace(w.running(number), f)
			time.Sleep(f.lasts / 10)
		}
	case readd:
		p.restartHandler(queue)
	case hangs:
		w.hanging.Store(true)
	case slow:
		w.ledger.disturbed(f.lasts + standstill)
		p.slow(f)
	case redrive, looks:
		w.operate(f.kind, queue)
	case withheld:
		w.withhold(f)
	case pause:
		if p.connection == nil || p.pausing.Swap(true) {
			return
		}
		defer p.pausing.Store(false)
		if p.connection.Pause(handlerOf(queue)) == nil {
			half := time.After(f.lasts / 2)
			if f.again() { // what was bound just before is bound once more
				time.Sleep(f.lasts / 8)
				_ = p.connection.Resume(handlerOf(queue))
				time.Sleep(f.lasts / 8)
				_ = p.connection.Pause(handlerOf(queue))
			}
			<-half // what was handed to the handler goes on
			p.setPaused(queue, true)
			if f.whole() {
				w.purge(queue, queue) // only an empty queue is replaced
				w.broker.ReplaceQueue(queue, true)
			}
			time.Sleep(f.lasts / 2)
			p.setPaused(queue, false)
			_ = p.connection.Resume(handlerOf(queue))
		}
	default:
		w.change(f, queue)
	}
}

// replace ends a process, and starts another one in its place.
func (w *world) replace(p *process, f fault) {
	if p.ending.Swap(true) {
		return
	}
	w.ledger.handedOver.Store(0)
	if f.kind == kill {
		p.kill()
		time.Sleep(f.lasts)
	} else {
		switch { // a shutdown ends the calls of the builder, and holds
		case w.plan.shape == builder, w.plan.shape == keepsOrder && w.plan.copies() > 1:
			w.ledger.lost(time.Second)
		}
		p.stop()
	}
	w.start(p.number)
}

// change changes what there is on the broker, as another client does.
func (w *world) change(f fault, queue string) {
	switch f.kind {
	case unbind:
		for _, exchange := range []string{"retry.return", "shared.retry.return", "retry.return.any"} {
			w.broker.Unbind(queue, exchange)
		}
	case noTier:
		w.broker.DeleteQueue(w.tier(f.pick), true)
	case purge:
		w.purge([]string{queue, queue + ".dead", w.tier(f.pick), w.partition(f.pick)}[f.pick/4%4], queue)
	case noDead:
		w.broker.DeleteQueue(queue+".dead", true)
	case replace:
		w.broker.ReplaceQueue(queue, true)
	case noWork:
		w.broker.DeleteQueue(queue, true)
	case noReturn:
		w.broker.DeleteExchange("retry.return")
		if f.whole() {
			w.broker.DeleteExchange("retry.return.any")
		}
	case noExchange:
		w.broker.DeleteExchange("retry")
	case noPart:
		w.broker.Unbind(w.partition(f.pick), topic+".order")
	case partDeleted:
		w.broker.DeleteQueue(w.partition(f.pick), true)
	case full:
		pattern := regexp.MustCompile(f.fills())
		if f.fills() == tiersFull && f.one() && w.tier(f.pick) != "" {
			pattern = regexp.MustCompile("^" + regexp.QuoteMeta(w.tier(f.pick)) + "$")
		}
		w.broker.SetPolicy("full", model.Policy{Pattern: pattern,
			Definition: map[string]any{"max-length": int64(f.pick % 2), "overflow": "reject-publish"}})
		time.Sleep(f.lasts)
		w.broker.SetPolicy("full", model.Policy{})
		if f.fills() == deadFull {
			w.ledger.disturbed(refused)
		}
	case noDeclare:
		w.broker.Refuse(func(string) uint16 { // each ends its connection
			w.ledger.lost(0)
			return 541
		})
		w.broker.DeleteQueue(queue+".dead", true) // it is what a start has to declare
		w.running(f.pick).disturb(model.Cut)
		time.Sleep(f.lasts)
		w.broker.Refuse(nil)
	}
}

// purge purges a queue, as an operator does. What it had is not lost.
func (w *world) purge(name, queue string) {
	purged := map[string]int{}
	for _, m := range w.broker.Messages(name) {
		if !m.Unacknowledged {
			purged[string(m.Body)+" "+m.RoutingKey]++
			w.ledger.purged(queue, string(m.Body), m.RoutingKey)
		}
	}
	w.broker.Note("purged: %d of %v", w.broker.PurgeQueue(name), purged)
}

func (w *world) partition(pick int) string {
	return fmt.Sprint(topic, ".order.", pick%max(w.plan.partitions, 1))
}

// operate looks at dead letters, or sends them back, as wmretry does.
func (w *world) operate(kind, queue string) {
	store, err := deadletter.Open(deadletter.Config{URI: "amqp://guest:guest@model:5672/",
		AMQP: &amqp091.Config{Dial: w.broker.Dial}}, nil)
	if err != nil {
		w.ledger.violated("", "the dead letters cannot be opened: %v", err)
		return
	}
	defer store.Close()
	if kind == looks {
		w.look(store, queue)
		return
	}
	over := w.ledger.redriving(queue)
	summary, err := store.Redrive(context.Background(), queue+".dead", letters.Redrive{By: "operator"})
	over()
	w.broker.Note("redrive: %+v, %v", summary, err)
}

// mayHave reports whether the plan has one of these faults.
func (p plan) mayHave(kinds ...string) bool {
	return slices.ContainsFunc(p.faults, func(f fault) bool { return slices.Contains(kinds, f.kind) })
}
