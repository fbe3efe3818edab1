package rabbitmq

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const (
	argType       = amqp091.QueueTypeArg
	argLimit      = "x-delivery-limit"
	argDLX        = "x-dead-letter-exchange"
	argDLK        = "x-dead-letter-routing-key"
	argDLStrategy = "x-dead-letter-strategy"
	argOverflow   = amqp091.QueueOverflowArg
)

// protection is what topology.Protect may add, and what may be missing from a queue that exists.
var protection = []string{argType, argLimit, argDLX, argDLK, argDLStrategy, argOverflow}

// workQueues knows what the app's queues are on the broker. It asks over short-lived connections of its own, for the broker
// closes the channel of who asks for something else than there is.
type workQueues struct {
	dial   func() (*look, error)
	config Config

	mu     sync.Mutex
	queues map[string]*workQueue
	warned map[string]bool
}

// workQueue is what is known of one: handlers of the same queue look at it one after the other, others do not wait.
type workQueue struct {
	mu    sync.Mutex
	known bool
	have  amqp091.Table // its arguments on the broker
}

func (w *workQueues) of(queue string) *workQueue {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.queues[queue]
	if q == nil {
		q = &workQueue{}
		w.queues[queue] = q
	}
	return q
}

// once runs a look at the broker, over a connection of its own, the first time and after forget.
func (w *workQueues) once(queue string, ask func(*amqp091.Connection) (amqp091.Table, error)) (amqp091.Table, error) {
	q := w.of(queue)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known {
		return maps.Clone(q.have), nil
	}
	look, err := w.dial()
	if err != nil {
		return nil, fmt.Errorf("cannot connect to look at work queue %q: %w", queue, err)
	}
	defer look.close()
	have, err := ask(look.Connection)
	if err != nil {
		return nil, err
	}
	q.known, q.have = true, have
	return maps.Clone(have), nil
}

// forget makes the next look ask again: the queue may have been replaced.
func (w *workQueues) forget(queue string) {
	q := w.of(queue)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.known = false
}

// resolve declares the queue where it does not exist, as the topology says, and the rest, and returns the arguments that the
// queue has.
func (w *workQueues) resolve(app topology.Queue, t topology.Topology, logger watermill.LoggerAdapter) (amqp091.Table, error) {
	return w.once(app.Name, func(connection *amqp091.Connection) (amqp091.Table, error) {
		broker := brokerVersion(connection)
		if err := w.judgeBroker(app, broker, logger); err != nil {
			return nil, err
		}
		have, err := ask(connection, t.WorkQueue)
		if err != nil {
			return nil, err
		}
		if err := w.judge(app, have, broker, logger); err != nil {
			return nil, err
		}
		return have, declareAndProbe(connection, t)
	})
}

// ask declares the queue as wanted and, where it exists with other arguments, again with what the broker says it has, until
// they agree: passive declares do not tell arguments.
func ask(connection *amqp091.Connection, want topology.Queue) (amqp091.Table, error) {
	arguments := maps.Clone(want.Arguments)
	for range 32 { // there are fewer arguments than that
		channel, err := connection.Channel()
		if err != nil {
			return nil, fmt.Errorf("cannot look at work queue %q: %w", want.Name, err)
		}
		_, err = channel.QueueDeclare(want.Name, want.Durable, false, false, false, arguments)
		if err == nil {
			return arguments, channel.Close()
		}
		differs, ok := refusal.DifferenceIn(err)
		if !ok || !strings.HasPrefix(differs.Argument, "x-") {
			return nil, explain("declare queue", want.Name, err)
		}
		if arguments == nil {
			arguments = amqp091.Table{}
		}
		if have := differs.Value(arguments[differs.Argument]); have != nil {
			arguments[differs.Argument] = have
		} else {
			delete(arguments, differs.Argument)
		}
	}
	return nil, fmt.Errorf("cannot find out the arguments of work queue %q", want.Name)
}

// judge compares a queue with what the app asked for and with what keeps its messages safe.
func (w *workQueues) judge(app topology.Queue, have amqp091.Table, broker version, logger watermill.LoggerAdapter) error {
	for _, key := range slices.Sorted(maps.Keys(union(app.Arguments, have))) {
		asked, said := app.Arguments[key]
		if !said && isProtection(key) {
			continue
		}
		if has := have[key]; !sameArgument(asked, has) && !(key == argType && isClassic(asked) && isClassic(has)) {
			return &topology.ArgumentConflictError{Object: app.Name, Argument: key, Want: valueText(asked), Have: valueText(has)}
		}
	}
	if _, protected := have[argDLX]; protected {
		return nil
	}
	quorum := have[argType] == string(topology.Quorum)
	policy := w.policy(app.Name, quorum)
	if quorum && broker.dropsAtDeliveryLimit() && !w.config.AllowUnprotectedQuorum {
		return fmt.Errorf("%w: work queue %q on RabbitMQ %s has no dead-letter exchange, so a message that is requeued 20 times is dropped: "+
			"protect it with a policy (%s) and then set AllowUnprotectedQuorum, which says that you did", topology.ErrUnprotectedQuorum, app.Name, broker, policy)
	}
	w.warnOnce("queue "+app.Name, logger, fmt.Sprintf("work queue %q has no dead-letter exchange, what the broker itself gives up on is dropped. "+
		"A policy protects it: %s", app.Name, policy))
	return nil
}

// policy is the command that protects a queue whose arguments cannot be changed any more.
func (w *workQueues) policy(queue string, quorum bool) string {
	limit := ""
	if quorum {
		limit = fmt.Sprintf(`,"delivery-limit":%d`, topology.DeliveryLimit)
	}
	return fmt.Sprintf(`rabbitmqctl set_policy -p '%s' --apply-to queues 'retry of %s' '^%s$' '{"dead-letter-exchange":"%s","dead-letter-routing-key":"%s"%s}'`,
		w.config.App.vhost(), queue, regexp.QuoteMeta(queue), naming.Prefix(w.config.Prefix).RetryExchange(), naming.DeadKey(queue), limit)
}

func union(a, b amqp091.Table) amqp091.Table {
	all := amqp091.Table{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func isProtection(key string) bool { return slices.Contains(protection, key) }

func isClassic(kind any) bool { return kind == nil || kind == string(topology.Classic) }

// sameArgument compares as the broker does, which knows one kind of integer.
func sameArgument(a, b any) bool {
	return reflect.DeepEqual(a, b) || a != nil && b != nil && fmt.Sprint(a) == fmt.Sprint(b)
}

func valueText(value any) string {
	if value == nil {
		return "none"
	}
	return fmt.Sprint(value)
}

func explain(what, name string, err error) error {
	err = refusal.Explain(what, name, err)
	if conflict, ok := err.(*refusal.Conflict); ok {
		return (*topology.ArgumentConflictError)(conflict)
	}
	return err
}
