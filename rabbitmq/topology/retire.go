package topology

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
)

const (
	// quiet is how long a queue must be empty. A number of messages can be older than ten seconds: a quorum queue
	// reports its number every five seconds, and the management plugin collects it every five seconds.
	quiet = 15 * time.Second

	// asked is how often RetireConfig.Messages is called in that time.
	asked = 3 * time.Second
)

// RetireConfig configures Retire.
type RetireConfig struct {
	// Old has the topologies that apps no longer use. Required.
	Old []Topology

	// Current has the topologies that apps use now. What they have is never deleted.
	Current []Topology

	// WholeGroups states that Current has every work queue of its groups. Then a tier of such a group is deleted if no
	// topology in Current has it. The default is false: the tiers of a group that Current has stay, because another of
	// its work queues may have a schedule that needs them.
	WholeGroups bool

	// Messages returns the number of messages on each queue of the virtual host, as `rabbitmqctl list_queues name
	// messages` shows it, and the field "messages" of the management API's GET /api/queues. It counts the messages
	// whose delay is over and which no work queue has taken yet. AMQP 0-9-1 does not show them. Required for quorum
	// queues and for the tiers of groups; without it they are left. It is called every three seconds. Leave out a queue
	// whose number the broker does not state yet.
	Messages func(context.Context) (map[string]int, error)
}

// Retire deletes what Old has and Current does not have: tiers, inboxes, the exchanges of a group, and the bindings of
// all these. Call it when no app that uses a topology of Old runs. It never deletes a work queue, a dead-letter queue,
// the exchanges that begin with the prefix, or the queue of the orphans. It may be repeated.
//
// It returns the names of the queues that it has left, because they have messages or consumers, or because their number
// of messages is not known. The tiers of a group are deleted together, and are left while a work queue that Old does
// not have is bound to the return exchange of the group. A message on a queue that is left comes back to its work
// queue.
//
// The broker deletes a classic queue only if it is empty and has no consumer. It refuses these conditions for a quorum
// queue, with error 540 NOT_IMPLEMENTED on RabbitMQ 3.10 to 4.3. So Retire unbinds a quorum queue, waits until Messages
// has returned 0 for 15 seconds, and deletes it then. It opens channels on the connection, and waits once for all
// queues.
func Retire(ctx context.Context, connection *amqp091.Connection, config RetireConfig) (left []string, err error) {
	if len(config.Old) == 0 {
		return nil, errors.New("RetireConfig.Old is empty: it must have the topologies that apps no longer use")
	}
	for _, t := range append(slices.Clone(config.Old), config.Current...) {
		if t.fault != nil {
			return nil, t.fault
		}
	}
	r := retirement{RetireConfig: config, connection: connection, groups: map[string]*retiredGroup{},
		left: map[string]bool{}}
	defer r.close()
	r.plan()
	steps := []func() error{r.exist, r.unbind, func() error { return r.wait(ctx) }, r.deleteOwn, r.deleteGroups}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(r.left)), nil
}

// A retirement is one call of Retire.
type retirement struct {
	RetireConfig
	connection *amqp091.Connection

	own    []retired                // each is deleted by itself
	groups map[string]*retiredGroup // by return exchange
	known  map[string]int           // what Messages has returned last
	left   map[string]bool

	channel *amqp091.Channel
}

// A retiredGroup is a group that no topology in Current belongs to. Its tiers are deleted together.
type retiredGroup struct {
	in, out Exchange
	tiers   []retired
}

// A retired queue is one that Current does not have, with the bindings that only it needs.
type retired struct {
	Queue
	before  []Binding // that bring messages to it; removed before it is deleted
	after   []Binding // that bring its messages to the work queue; removed after it is deleted
	blocked bool      // it stays
}

// exist forgets the queues that do not exist.
func (r *retirement) exist() (err error) {
	missing := func(q retired) bool {
		if err != nil {
			return false
		}
		_, found, e := r.look(q.Name)
		err = e
		return e == nil && !found
	}
	r.own = slices.DeleteFunc(r.own, missing)
	for _, group := range r.groups {
		group.tiers = slices.DeleteFunc(group.tiers, missing)
	}
	for _, q := range r.own {
		if q.blocked {
			r.left[q.Name] = true
		}
	}
	return err
}

// unbind removes the bindings through which messages come to the queues, except those of groups: other work queues may
// use these. It removes the work queues of Old from the return exchanges of their groups: messages come back through
// the alternate exchange.
func (r *retirement) unbind() error {
	var bindings []Binding
	for _, q := range r.own {
		if !q.blocked {
			bindings = append(bindings, q.before...)
		}
	}
	for _, t := range r.Old {
		n, work := t.config.prefix(), t.WorkQueue.Name
		stays := func(current Topology) bool { return current.WorkQueue.Name == work && current.sharesTiers(t) }
		if !t.grouped() || slices.ContainsFunc(r.Current, stays) {
			continue
		}
		out := n.GroupReturnExchange(t.Group())
		bindings = append(bindings,
			Binding{Exchange: out, Queue: work, Key: naming.MemberKey(work)},
			Binding{Exchange: out, Queue: n.InboxQueue(work), Key: naming.AnyReturnKey(work)},
		)
	}
	return r.unbindAll(bindings)
}

// wait leaves the quorum queues that are not empty for a while.
func (r *retirement) wait(ctx context.Context) error {
	var quorum []string
	for _, q := range r.all() {
		if q.Arguments[queuearg.QueueType] == string(Quorum) && !r.left[q.Name] {
			quorum = append(quorum, q.Name)
		}
	}
	if r.Messages == nil {
		for _, name := range quorum {
			r.left[name] = true
		}
		return nil
	}
	begin, empty := time.Now(), map[string]time.Time{}
	tick := time.NewTicker(asked)
	defer tick.Stop()
	for {
		var err error
		if r.known, err = r.Messages(ctx); err != nil {
			return fmt.Errorf("RetireConfig.Messages: %w", err)
		}
		quorum = slices.DeleteFunc(quorum, func(name string) bool {
			n, known := r.known[name]
			switch since, was := empty[name]; {
			case n > 0, !known && time.Since(begin) > quiet:
				r.left[name] = true
			case known && !was:
				empty[name] = time.Now()
				return false
			default:
				return known && time.Since(since) > quiet
			}
			return true
		})
		if len(quorum) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// deleteOwn deletes the queues that no other work queue uses.
func (r *retirement) deleteOwn() error {
	for _, q := range r.own {
		if r.left[q.Name] {
			continue
		}
		deleted, err := r.deleteQueue(q.Queue)
		if err == nil && deleted {
			err = r.unbindAll(q.after)
		}
		if err != nil {
			return err
		}
		if !deleted {
			r.left[q.Name] = true
		}
	}
	return nil
}

// deleteGroups deletes the tiers and the exchanges of groups that have no work queue. The broker deletes the return
// exchange only if no work queue is bound to it.
func (r *retirement) deleteGroups() error {
	for _, group := range r.groups {
		deletes, err := r.isOver(group)
		if err != nil {
			return err
		}
		if deletes {
			if deletes, err = r.deleteExchange(group.out.Name, true); err != nil {
				return err
			}
		}
		if !deletes {
			for _, tier := range group.tiers {
				r.left[tier.Name] = true
			}
			continue
		}
		if _, err := r.deleteExchange(group.in.Name, false); err != nil {
			return err
		}
		if err := r.deleteTiers(group); err != nil {
			return err
		}
	}
	return nil
}

// isOver reports whether no message is on the tiers of a group, and no work queue of it has had other tiers. Without
// the return exchange, messages would wait for it, or be lost on a classic tier.
func (r *retirement) isOver(group *retiredGroup) (bool, error) {
	if r.Messages == nil {
		return false, nil
	}
	for name := range r.known {
		word, isOf := strings.CutPrefix(name, group.in.Name+".")
		if _, err := backoff.ParseTier(word); !isOf || err != nil {
			continue
		}
		if !slices.ContainsFunc(group.tiers, func(q retired) bool { return q.Name == name }) {
			r.left[name] = true
			return false, nil
		}
	}
	for _, tier := range group.tiers {
		if r.left[tier.Name] {
			return false, nil
		}
		if used, _, err := r.look(tier.Name); err != nil || used > 0 {
			return false, err
		}
	}
	return true, nil
}

// deleteTiers deletes the tiers of a group whose exchanges are deleted. A message that has come meanwhile needs the
// return exchange.
func (r *retirement) deleteTiers(group *retiredGroup) error {
	for _, tier := range group.tiers {
		deleted, err := r.deleteQueue(tier.Queue)
		if err != nil {
			return err
		}
		if deleted {
			continue
		}
		r.left[tier.Name] = true
		if err := r.over(func(channel *amqp091.Channel) error {
			return declareExchange(channel, group.out)
		}); err != nil {
			return err
		}
	}
	return nil
}

// deleteExchange reports whether the exchange does not exist any more.
func (r *retirement) deleteExchange(name string, ifUnused bool) (deleted bool, err error) {
	err = r.over(func(channel *amqp091.Channel) error { return channel.ExchangeDelete(name, ifUnused, false) })
	switch {
	case err == nil:
		return true, nil
	case refusal.IsCode(err, amqp091.PreconditionFailed):
		return false, nil
	}
	return false, refusal.Explain("delete exchange", name, err)
}

// deleteQueue deletes a queue if it is empty and no consumer uses it.
func (r *retirement) deleteQueue(queue Queue) (deleted bool, err error) {
	atomic := queue.Arguments[queuearg.QueueType] != string(Quorum)
	if !atomic {
		if used, _, err := r.look(queue.Name); err != nil || used > 0 {
			return false, err
		}
	}
	err = r.over(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDelete(queue.Name, atomic, atomic, false)
		return err
	})
	switch {
	case err == nil:
		return true, nil
	case refusal.IsCode(err, amqp091.PreconditionFailed):
		return false, nil
	}
	return false, refusal.Explain("delete queue", queue.Name, err)
}

// look returns the number of messages whose delay is not over and of consumers.
func (r *retirement) look(queue string) (used int, found bool, err error) {
	var q amqp091.Queue
	err = r.over(func(channel *amqp091.Channel) (err error) {
		q, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	})
	switch {
	case err == nil:
		return q.Messages + q.Consumers, true, nil
	case refusal.IsCode(err, amqp091.NotFound):
		return 0, false, nil
	}
	return 0, false, refusal.Explain("look at queue", queue, err)
}

// over calls use with a channel. The broker closes it with each refusal.
func (r *retirement) over(use func(*amqp091.Channel) error) (err error) {
	if r.channel == nil || r.channel.IsClosed() {
		if r.channel, err = r.connection.Channel(); err != nil {
			return err
		}
	}
	return use(r.channel)
}

func (r *retirement) close() {
	if r.channel != nil {
		_ = r.channel.Close()
	}
}

// unbindAll removes bindings. RabbitMQ has no error for one that does not exist.
func (r *retirement) unbindAll(bindings []Binding) error {
	for _, b := range bindings {
		err := r.over(func(channel *amqp091.Channel) error {
			return channel.QueueUnbind(b.Queue, b.Key, b.Exchange, nil)
		})
		if err != nil {
			return refusal.Explain(fmt.Sprintf("unbind from exchange %q with key %q the queue", b.Exchange, b.Key),
				b.Queue, err)
		}
	}
	return nil
}
