package door

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/internal/tasks"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// returns binds work queues again while they are consumed, to the exchange for messages of any tier. An operator can
// remove bindings, or delete an exchange, and another app declares it again without this app's bindings: messages whose
// delay is over can then become orphans. The keys of the return exchange are a short cut: without them messages come
// back through the other exchange. AMQP 0-9-1 has no method to read bindings, so that a lost one is restored and not
// noticed. It uses one channel, and binds at most one queue a second. With VerifyOnly it binds nothing. The queue of
// the orphans has a turn, too.
type returns struct {
	core      *core
	consuming *ordered.Connection
	logger    watermill.LoggerAdapter
	turns     *turns
	*tasks.Tasks

	mu     sync.Mutex
	broker subscriber.Broker // the broker of the connection that consumes now; nil: there was none

	// Only the goroutine of the turns uses these.
	channel   wire.Reopening
	channelOf subscriber.Broker
	failing   map[string]bool // the queues whose last check has failed
	orphaned  bool            // the queue of the orphans had messages at its last turn
}

func newReturns(c *core, consuming *ordered.Connection, logger watermill.LoggerAdapter) *returns {
	r := &returns{
		core: c, consuming: consuming, logger: logger, turns: newTurns(), failing: map[string]bool{},
		Tasks: tasks.New(context.Background()),
	}
	r.Go(func() {
		for name, open := r.turns.next(r.Context); open; name, open = r.turns.next(r.Context) {
			r.check(name)
		}
	})
	return r
}

// add begins to check a work queue, whose topology has just been declared over this connection. Those of earlier
// connections have turns again when they are declared again.
func (r *returns) add(broker subscriber.Broker, queue string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broker == nil || broker.Number() > r.broker.Number() {
		r.broker = broker
		r.turns.clear()
	}
	if broker.Number() == r.broker.Number() {
		if !r.core.verifyOnly {
			r.turns.add(queue)
		}
		r.turns.add(r.core.prefix.Orphans())
	}
}

// check binds one queue, and declares an exchange that is gone. Without a connection it does nothing: after a reconnect
// everything is declared again.
func (r *returns) check(name string) {
	r.mu.Lock()
	broker := r.broker
	r.mu.Unlock()
	if name == r.core.prefix.Orphans() {
		r.lookForOrphans(name, broker)
		return
	}
	if !r.consumed()[name] {
		return
	}
	t, _ := r.core.existing(name)
	lasting := r.lastingBindings(t)
	isBound := func(e topology.Exchange) bool {
		return slices.ContainsFunc(lasting, func(b topology.Binding) bool { return b.Exchange == e.Name })
	}
	missing, err := r.missing(slices.DeleteFunc(r.core.returnsThrough(t), isBound), broker)
	if err == nil && missing == "" {
		err = r.over(broker, func(channel *amqp091.Channel) error { return bindAll(channel, lasting) })
	}
	if refusal.IsCode(err, amqp091.NotFound) {
		missing, err = r.missing(r.core.returnsThrough(t), broker)
		// the work queue is gone, and its subscription declares it again; or its inbox is
		if err == nil && missing == "" {
			err = r.over(broker, r.core.redeclare(t))
		}
	}
	if err == nil && missing != "" {
		err = r.restore(missing, t, broker)
	}
	r.report(name, err)
}

// lookForOrphans logs that there are orphans, once until there are none. Where the queue cannot be looked at, it does
// nothing: the topology is declared or verified elsewhere.
func (r *returns) lookForOrphans(queue string, broker subscriber.Broker) {
	var there amqp091.Queue
	err := r.over(broker, func(channel *amqp091.Channel) (err error) {
		there, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	if err != nil {
		return
	}
	if there.Messages > 0 && !r.orphaned {
		warning.Log(r.logger, fmt.Sprintf("%d orphans are in the queue %q: their delay was over, and no work queue "+
			"got them. A work queue or its bindings are gone, or a policy with dead-letter-routing-key applies to "+
			"tiers: `%s` shows which. Then send them back: `%s`", there.Messages, queue,
			workqueue.Command(r.core.prefix, "doctor"), workqueue.Command(r.core.prefix, "dead", "redrive", queue)),
			watermill.LogFields{"queue": queue})
	}
	r.orphaned = there.Messages > 0
}

// consumed returns the work queues that handlers consume.
func (r *returns) consumed() map[string]bool {
	queues := map[string]bool{}
	for _, s := range r.consuming.Health().Subscriptions {
		queues[s.Queue] = true
	}
	return queues
}

// missing returns the first exchange that does not exist.
func (r *returns) missing(exchanges []topology.Exchange, broker subscriber.Broker) (string, error) {
	for _, e := range exchanges {
		err := r.over(broker, func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
		})
		if refusal.IsCode(err, amqp091.NotFound) {
			return e.Name, nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// returnsBy are the bindings through which messages come back to the work queue, or to its inbox.
func (c *core) returnsBy(t topology.Topology) []topology.Binding {
	work := t.WorkQueue.Name
	return slices.DeleteFunc(slices.Clone(t.Bindings), func(b topology.Binding) bool {
		return b.Queue != work && b.Queue != c.prefix.InboxQueue(work)
	})
}

// returnsThrough are the exchanges that messages come back through.
func (c *core) returnsThrough(t topology.Topology) []topology.Exchange {
	bindings := c.returnsBy(t)
	return slices.DeleteFunc(slices.Clone(t.Exchanges), func(e topology.Exchange) bool {
		return !slices.ContainsFunc(bindings, func(b topology.Binding) bool { return b.Exchange == e.Name })
	})
}

// redeclare declares again what was deleted, except the work queue, which belongs to the app. Without the work queue it
// returns no error: messages that come back become orphans.
func (c *core) redeclare(t topology.Topology) func(*amqp091.Channel) error {
	copies, back := t, t
	back.Exchanges, back.Queues, back.Bindings = c.returnsThrough(t), nil, c.returnsBy(t)
	copies.Exchanges = slices.DeleteFunc(slices.Clone(t.Exchanges), func(e topology.Exchange) bool {
		return slices.ContainsFunc(back.Exchanges, func(other topology.Exchange) bool { return other.Name == e.Name })
	})
	copies.Bindings = slices.DeleteFunc(slices.Clone(t.Bindings), func(b topology.Binding) bool {
		return slices.Contains(back.Bindings, b)
	})
	return func(channel *amqp091.Channel) error {
		err := copies.DeclareRetry(channel)
		if err == nil {
			if err = back.DeclareRetry(channel); refusal.IsCode(err, amqp091.NotFound) {
				return nil
			}
		}
		return err
	}
}

// lastingBindings are the bindings through which messages of any tier come back. The other ones are short cuts: without
// them messages come back through these.
func (r *returns) lastingBindings(t topology.Topology) []topology.Binding {
	work := t.WorkQueue.Name
	return slices.DeleteFunc(r.core.returnsBy(t), func(b topology.Binding) bool {
		return b.Key != naming.AnyReturnKey(work) && b.Key != naming.InboxKey(work)
	})
}

// over calls use with the channel of the checks.
func (r *returns) over(broker subscriber.Broker, use func(*amqp091.Channel) error) error {
	if r.channelOf != broker {
		r.channel, r.channelOf = wire.Reopening{On: broker}, broker
	}
	channel, err := r.channel.Channel()
	if err != nil {
		return err
	}
	return use(channel)
}

func bindAll(channel *amqp091.Channel, bindings []topology.Binding) error {
	for _, b := range bindings {
		if err := channel.QueueBind(b.Queue, b.Key, b.Exchange, false, nil); err != nil {
			return refusal.Explain(fmt.Sprintf("bind to exchange %q with key %q the queue", b.Exchange, b.Key), b.Queue,
				err)
		}
	}
	return nil
}

// restore declares an exchange that is gone, and what else is missing, except the work queue. All queues have lost
// their bindings to it: they are bound at once.
func (r *returns) restore(exchange string, t topology.Topology, broker subscriber.Broker) error {
	err := r.over(broker, r.core.redeclare(t))
	if err != nil {
		return err
	}
	consumed := r.consumed()
	for name, other := range r.core.workQueues() {
		if consumed[name] && name != t.WorkQueue.Name {
			// An error is reported by the check of that queue.
			_ = r.over(broker, func(channel *amqp091.Channel) error {
				return bindAll(channel, r.core.returnsBy(other))
			})
		}
	}
	warning.Log(r.logger, fmt.Sprintf("exchange %q was gone: it has been declared again, and the work queues that "+
		"this process consumes are bound to it. "+
		"Work queues of other apps may have lost their bindings", exchange), nil)
	return nil
}

// report logs when checks of a queue begin to fail, and when they no longer do. A lost connection is logged elsewhere.
func (r *returns) report(name string, err error) {
	var refused *amqp091.Error
	failing := errors.As(err, &refused) && refused.Server && !wire.IsLost(err)
	switch fields := (watermill.LogFields{"queue": name}); {
	case failing && !r.failing[name]:
		r.failing[name] = true
		r.logger.Error("Cannot bind the work queue to the return exchange: messages whose delay is over can become "+
			"orphans", err, fields)
	case err == nil && r.failing[name]:
		delete(r.failing, name)
		r.logger.Info("The work queue is bound to the return exchange again", fields)
	}
}
