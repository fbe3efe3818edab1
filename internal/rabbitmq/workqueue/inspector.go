// Package workqueue inspects the app's work queues on the broker before the app consumes them: whether they exist,
// which arguments they have, and whether this broker keeps their messages.
package workqueue

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Config configures New.
type Config struct {
	Vhost string // for the commands in warnings

	Prefix                 naming.Prefix
	QueueType              topology.QueueType
	AllowUnprotectedQuorum bool
	DeadLetters            topology.Retention
}

// Inspector inspects work queues. It is safe for concurrent use.
type Inspector struct {
	config Config

	probed wire.Once[string] // exchanges, on any connection

	mu     sync.Mutex
	warned map[string]bool
	silent time.Time // when an alarm has blocked a probe the last time; zero: never
}

// New returns an Inspector. It does not connect.
func New(config Config) *Inspector {
	return &Inspector{config: config, warned: map[string]bool{}}
}

// Existing returns the topology of a work queue that exists with these arguments, which may differ from those that it
// would be declared with. In a group they decide whether it has an inbox.
func Existing(config topology.Config, app topology.Queue, arguments amqp091.Table) topology.Topology {
	config.WorkQueueMode = topology.Leave
	app.Arguments = arguments
	return topology.New(config, app)
}

// Inspect declares a work queue if it does not exist, and returns its topology. It refuses a broker or a queue that
// loses messages. app is the work queue as the app's configuration describes it.
func (i *Inspector) Inspect(
	b Broker, config topology.Config, app topology.Queue, logger watermill.LoggerAdapter,
) (t topology.Topology, err error) {
	v := parseVersion(b.Version())
	if err = i.checkBroker(app, v, logger); err != nil {
		return t, err
	}
	var have amqp091.Table
	protects := config
	protects.WorkQueueMode = topology.Protect
	usual := topology.New(protects, app).WorkQueue.Arguments
	err = whileAbsent(func() (err error) {
		have, err = declare(b, topology.New(config, app).WorkQueue, usual)
		if err == nil && v.dropsAtDeliveryLimit() && !i.config.AllowUnprotectedQuorum {
			have, err = typed(b, app, have)
		}
		return err
	})
	if errors.Is(err, errHidden) {
		err = fmt.Errorf("%w: set it in AMQP.Queue.Arguments", err)
	}
	if err == nil {
		err = i.checkQueue(app, have, v, logger)
	}
	if err == nil {
		t = Existing(config, app, have)
		err = t.Validate()
	}
	return t, err
}

// DeclareRetry declares the topology of a work queue that exists. declare is t.DeclareRetry, or declares less of it.
func (i *Inspector) DeclareRetry(b Broker, t topology.Topology, declare func(*amqp091.Channel) error) error {
	err := whileAbsent(func() error {
		channel, err := b.Channel()
		if err != nil {
			return fmt.Errorf("cannot open a channel to declare the topology of work queue %q: %w", t.WorkQueue.Name, err)
		}
		return declare(channel)
	})
	if err == nil {
		err = i.probe(b, t)
	}
	return err
}

// whileAbsent repeats a declaration, for up to a second, where another instance is just creating one of its queues.
func whileAbsent(declare func() error) (err error) {
	pause := wire.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond}
	for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(pause.Next()) {
		if err = declare(); !refusal.IsAbsent(err) {
			return err
		}
	}
	return err
}

// Check checks the topology and declares nothing. It checks the broker first, because a broker may refuse the topology.
// It publishes last, because that needs the exchange.
func (i *Inspector) Check(
	b Broker, config topology.Config, app topology.Queue, logger watermill.LoggerAdapter,
) error {
	if err := i.checkBroker(app, parseVersion(b.Version()), logger); err != nil {
		return err
	}
	t := topology.New(config, app)
	channel, err := b.Channel()
	if err != nil {
		return fmt.Errorf("cannot open a channel to verify the topology of work queue %q: %w", app.Name, err)
	}
	if err = t.Verify(channel); err != nil {
		return err
	}
	return i.probe(b, t)
}

// checkBroker refuses what the broker would refuse, with the reason, and warns once of each way in which it may lose
// messages.
func (i *Inspector) checkBroker(app topology.Queue, v version, logger watermill.LoggerAdapter) error {
	if !app.Durable && v.refusesTransient() {
		return fmt.Errorf("%w: work queue %q is not durable, which RabbitMQ %s refuses: set AMQP.Queue.Durable, as "+
			"amqp.NewDurableQueueConfig does",
			topology.ErrTransientQueue, app.Name, v)
	}
	if v.losesCycles() {
		i.warnOnce("version", logger, fmt.Sprintf("RabbitMQ %s can drop messages that are dead-lettered more than "+
			"once: update to 3.13.3 or later", v))
	}
	if i.config.QueueType == topology.Classic {
		i.warnOnce("classic", logger, "QueueType is classic: a classic tier dead-letters expired messages without a "+
			"confirm, so a message that is "+
			"just expiring is lost if the broker crashes, and in a cluster a classic queue is not replicated. Quorum "+
			"queues do not lose messages this way")
	}
	if limits := i.config.DeadLetters; limits != (topology.Retention{}) {
		i.warnOnce("retention", logger, fmt.Sprintf("DeadLetters has a limit (%v): the broker drops the oldest dead "+
			"letters of each work queue at this limit, "+
			"and they are lost", limits))
	}
	return nil
}

// checkQueue refuses a queue that differs from the app's configuration or that loses messages on this broker, and warns
// once of a queue without a dead-letter exchange.
func (i *Inspector) checkQueue(
	app topology.Queue, have amqp091.Table, v version, logger watermill.LoggerAdapter,
) error {
	if have[queuearg.QueueType] == amqp091.QueueTypeStream {
		return fmt.Errorf("%w: %q, the work queue: %s. %s", ErrStream, app.Name, StreamReason, StreamAdvice)
	}
	if differs := Conflicts(app, have); len(differs) > 0 {
		if differs[0].Argument == queuearg.SingleActiveConsumer {
			differs[0].Advice = "with Order.Partitions one process at a time moves its messages to the partitions. The " +
				"arguments of a queue cannot be changed: follow \"From an unordered queue\" or, on the way back, " +
				"\"Back to an unordered queue\" of docs/order.md"
		}
		return differs[0]
	}
	i.warnOfRefusals(app.Name, have, logger)
	if other, differs := OtherPrefix(app, have, i.config.Prefix); differs {
		i.warnOnce("prefix of "+app.Name, logger,
			fmt.Sprintf("work queue %q was declared with the Prefix %q, and now has the Prefix %q too: %s. %s",
				app.Name, other, string(i.config.Prefix), OtherPrefixReason, OtherPrefixAdvice(other)))
	}
	if _, protected := have[queuearg.DeadLetterExchange]; protected {
		return nil
	}
	quorum := have[queuearg.QueueType] == string(topology.Quorum)
	command := PolicyCommand(i.config.Vhost, app.Name, i.config.Prefix, quorum)
	if quorum && v.dropsAtDeliveryLimit() && !i.config.AllowUnprotectedQuorum {
		return fmt.Errorf("%w: work queue %q on RabbitMQ %s has no dead-letter exchange, so a message that is "+
			"requeued 20 times is dropped: "+
			"protect the queue with a policy (%s), then set "+
			"AllowUnprotectedQuorum", topology.ErrUnprotectedQuorum, app.Name, v, command)
	}
	i.warnOnce("queue "+app.Name, logger, fmt.Sprintf("work queue %q has no dead-letter exchange of its own, so a "+
		"message that the broker itself gives up is dropped. A policy protects it (the app cannot see policies: ignore "+
		"this line if it is set): %s", app.Name, command))
	return nil
}

// ErrStream is returned when a work queue is a stream.
var ErrStream = errors.New("a work queue cannot be a stream")

// StreamReason and StreamAdvice are why no app may have a stream as its work queue, and what to do.
const (
	StreamReason = "a message of a stream cannot be retried, because it stays in the stream, and what is published " +
		"while no app consumes is never handled"
	StreamAdvice = "let AMQP.Queue.GenerateName return the name of another queue, or delete the stream when its " +
		"messages are no longer needed: the app declares a quorum queue"
)

// warnOfRefusals warns of a work queue that can be full.
func (i *Inspector) warnOfRefusals(name string, have amqp091.Table, logger watermill.LoggerAdapter) {
	overflow, _ := have[queuearg.Overflow].(string)
	_, messages := have[queuearg.MaxLength]
	_, bytes := have[queuearg.MaxLengthBytes]
	if strings.HasPrefix(overflow, queuearg.RejectPublish) && (messages || bytes) {
		i.warnOnce("full "+name, logger, fmt.Sprintf("work queue %q refuses messages while it is full "+
			"(x-overflow=%s): retries that come back to it then "+
			"wait until 3 to 6 minutes after they are due, also where it has room again after a second. Raise the "+
			"length limit or remove it, "+
			"but do not remove x-overflow alone: the queue then drops its oldest messages. In a group, its inbox "+
			"keeps the other work queues in time", name, overflow))
	}
}

func (i *Inspector) warnOnce(about string, logger watermill.LoggerAdapter, text string) {
	i.mu.Lock()
	warned := i.warned[about]
	i.warned[about] = true
	i.mu.Unlock()
	if !warned {
		warning.Log(logger, text, nil)
	}
}
