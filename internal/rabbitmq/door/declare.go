package door

import (
	"context"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A declarer declares what handlers need on the broker, over the connection that consumes: for each queue once on each
// connection, and again when it may be gone. While the queues are consumed, it binds them again to the return exchange.
// It is safe for concurrent use. Close it after the connection.
type declarer struct {
	core       *core
	publishing *publisher.Connection
	returns    *returns
	control    *control
}

func newDeclarer(
	c *core, consuming *ordered.Connection, publishing *publisher.Connection, logger watermill.LoggerAdapter,
) *declarer {
	return &declarer{core: c, publishing: publishing, control: newControl(c, consuming, publishing, logger),
		returns: newReturns(c, consuming, logger)}
}

// close ends the goroutines of the declarer.
func (d *declarer) close() {
	d.control.Close()
	d.returns.Close()
}

// once calls do once on the connection, and again when what it has declared may be gone.
func (d *declarer) once(from *subscriber.Declaration, what, of string, lostAt time.Time, do func() error) error {
	return d.core.once.Do(context.Background(), from.Broker.Number(), deed{what, of}, lostAt, func() error {
		return panics.Error("Declare", do)
	})
}

// declare declares the work queue of a subscription, its topology, which has the tiers of all handlers of the queue,
// and the app's own topology of the topic.
func (d *declarer) declare(from *subscriber.Declaration, s app.Subscription) error {
	t, err := d.core.validTopology(s)
	if err != nil {
		return err
	}
	if d.core.queues.order(s.Queue).partitions > 0 {
		if err := checkSingle(from.Broker.Version()); err != nil {
			return err
		}
	}
	return d.once(from, "declare", queueNames(t)+s.Topic, from.LostAt, func() error { return d.run(from, s, t) })
}

func queueNames(t topology.Topology) string {
	var names strings.Builder
	for _, queue := range t.Queues {
		names.WriteString(queue.Name + "\n")
	}
	return names.String()
}

// run declares what is missing.
func (d *declarer) run(from *subscriber.Declaration, s app.Subscription, t topology.Topology) error {
	broker, inspector := inspected{from, d.publishing}, d.core.inspector
	config, work := d.core.topologyConfig(s.Queue), d.core.workQueue(s.Queue)
	if d.core.verifyOnly {
		if err := inspector.Check(broker, config, work, s.Logger); err != nil {
			return err
		}
		d.core.remember(s.Queue, t.WorkQueue.Arguments)
	} else {
		err := d.once(from, "inspect", s.Queue, from.LostAt, func() error {
			there, err := inspector.Inspect(broker, config, work, s.Logger)
			if err == nil {
				d.core.remember(s.Queue, there.WorkQueue.Arguments)
			}
			return err
		})
		if err != nil {
			return err
		}
		there, _ := d.core.existing(s.Queue)
		t = d.core.remember(s.Queue, there.WorkQueue.Arguments) // a further handler may have more tiers
		err = d.once(from, "retry", queueNames(t), from.LostAt, func() error {
			return inspector.DeclareRetry(broker, t, func(channel *amqp091.Channel) error {
				return d.declareRetry(from, t, channel)
			})
		})
		if err == nil {
			err = d.once(from, "app", s.Queue+"\n"+s.Topic, from.LostAt, func() error { return d.declareApp(from, s, t) })
		}
		if err != nil {
			return err
		}
	}
	d.returns.add(from.Broker, s.Queue)
	if config.Partitions > 0 {
		d.control.add(from.Broker)
	}
	return nil
}

func (d *declarer) declareApp(from *subscriber.Declaration, s app.Subscription, t topology.Topology) (err error) {
	if s.Channel, err = from.Channel(); err == nil {
		err = d.core.declareApp(s, t)
	}
	return err
}

// declareRetry declares the retry topology of a work queue. What it shares with other work queues, such as the tiers of
// a group, is declared by the first one on a connection, and the others wait for it.
func (d *declarer) declareRetry(from *subscriber.Declaration, t topology.Topology, channel *amqp091.Channel) error {
	own, shared := d.core.divide(t)
	first := false
	err := d.once(from, "shared", shared, from.LostAt, func() error {
		first = true
		return t.DeclareRetry(channel)
	})
	if first {
		return err
	}
	if err == nil {
		if err = own.DeclareRetry(channel); !refusal.IsCode(err, amqp091.NotFound) {
			return err
		}
	}
	// The first one has failed, or of what it has declared, something is gone.
	if channel, err = from.Channel(); err != nil {
		return err
	}
	return t.DeclareRetry(channel)
}

// divide returns a topology without what it shares with other work queues, and the names of that.
func (c *core) divide(t topology.Topology) (own topology.Topology, names string) {
	work := t.WorkQueue.Name
	isShared := func(queue string) bool {
		group, _, isTier := c.prefix.TierOf(queue)
		return queue == c.prefix.Orphans() || isTier && group != work
	}
	own = t
	own.Exchanges, own.Queues, own.Bindings = nil, nil, nil
	for _, e := range t.Exchanges {
		if e.Name == naming.OrderExchange(work) {
			own.Exchanges = append(own.Exchanges, e)
		} else {
			names += e.Name + "\n"
		}
	}
	for _, q := range t.Queues {
		if isShared(q.Name) {
			names += q.Name + "\n"
		} else {
			own.Queues = append(own.Queues, q)
		}
	}
	for _, b := range t.Bindings {
		if !isShared(b.Queue) {
			own.Bindings = append(own.Bindings, b)
		}
	}
	return own, names
}

// bindAgain is how long a bind serves for all handlers of a queue that begin to consume: those that start together.
const bindAgain = 5 * time.Second

// bind binds a work queue that is consumed, and declares the app's own topology of the topic.
func (d *declarer) bind(from *subscriber.Declaration, s app.Subscription) error {
	if d.core.verifyOnly {
		return nil
	}
	lostAt := time.Now().Add(-bindAgain)
	for _, at := range []time.Time{from.LostAt, d.core.once.Began(from.Broker.Number(), deed{"inspect", s.Queue})} {
		if at.After(lostAt) {
			lostAt = at
		}
	}
	return d.once(from, "bind", s.Queue, lostAt, func() error {
		channel, err := from.Channel()
		if err != nil {
			return err
		}
		t, _ := d.core.existing(s.Queue)
		if err = bindAll(channel, d.returns.lastingBindings(t)); err != nil || s.Exchange == "" {
			return err
		}
		return d.declareApp(from, s, t)
	})
}

// inspected is the workqueue.Broker of a declaration.
type inspected struct {
	*subscriber.Declaration
	publishing *publisher.Connection
}

func (i inspected) Version() string { return i.Broker.Version() }

func (i inspected) Publishing(ctx context.Context) (*amqp091.Channel, error) {
	return i.publishing.Channel(ctx)
}

func (i inspected) Blocked() bool { return i.publishing.Health().Blocked }
