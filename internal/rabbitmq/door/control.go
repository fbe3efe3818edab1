package door

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ask"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/ordered"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/tasks"
)

const (
	controlPause = 5 * time.Second // before the commands are consumed again
	replyTimeout = 5 * time.Second
	askTimeout   = time.Second // before a handler begins
	// tellSpread is the time within which processes tell each other after a restart of the broker: the queue of the
	// commands drops its oldest ones when too many come at one moment.
	tellSpread = 5 * time.Second
	// tellTimeout is for processes that are too busy to answer at once.
	tellTimeout  = 30 * time.Second
	mostCommands = 100 // commands that wait
	// queueNameLength is that of AMQP's short strings, in bytes.
	queueNameLength = channel.MaxShortString
	commandWindow   = 16 // commands that are fetched
)

// control carries out the commands of wmretry order and wmretry key, from the first handler with Order.Partitions or
// Breaker.Key on. Its queue ends with each connection. It answers over the connection for publishing: under an alarm,
// the broker reads nothing more from a connection that publishes.
type control struct {
	exchange   string
	consuming  *ordered.Connection
	publishing *publisher.Connection
	logger     watermill.LoggerAdapter
	*tasks.Tasks

	asked sync.Once

	mu     sync.Mutex
	keyed  []keyed
	limits []limit // decisions that the process knows, the latest one at the end
	number uint64  // the number of the connection
	end    context.CancelFunc
	again  time.Time // not before it, the queue is declared again
}

func newControl(
	c *core, consuming *ordered.Connection, publishing *publisher.Connection, logger watermill.LoggerAdapter,
) *control {
	return &control{exchange: c.prefix.OrderControl(), consuming: consuming, publishing: publishing, logger: logger,
		Tasks: tasks.New(context.Background())}
}

// keyed is a handler with Breaker.Key, on one of its queues.
type keyed struct {
	name, queue string
	gate        *gate.Gate
}

// addKeyed lets commands limit the keys of a handler. What an operator has limited in another process is limited here,
// too, so that a limit outlasts a rolling deployment.
func (c *control) addKeyed(k keyed) {
	c.mu.Lock()
	if !slices.Contains(c.keyed, k) {
		c.keyed = slices.DeleteFunc(c.keyed, func(other keyed) bool { return other.gate.Ended() })
		c.keyed = append(c.keyed, k)
	}
	c.apply()
	c.mu.Unlock()
	c.asked.Do(c.ask)
}

// ask waits for the answers of other processes, before the first handler with Breaker.Key consumes. How many there are
// is not known, and each app of the prefix answers: so it waits for its whole time where one is connected. Without an
// answer the handler begins all the same. Under an alarm the broker reads nothing more from a connection that
// publishes, and nothing waits for what then goes on.
func (c *control) ask() {
	ctx, cancel := context.WithTimeout(c.Context, askTimeout)
	c.Go(func() { defer cancel(); c.tell(c.Context) })
	<-ctx.Done()
}

// tell tells the other processes what this one knows of limits, and takes over what they answer: commands were for all
// of them, and each may have been away.
func (c *control) tell(ctx context.Context) {
	channel, err := c.publishing.Channel(ctx)
	for ; err != nil; channel, err = c.publishing.Channel(ctx) { // it is lost, or the broker blocks it
		if pauses.Sleep(ctx, controlPause) != nil {
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	request := command.Request{Do: command.Tell, Told: c.told()}
	err = within(ctx, channel, func() error {
		return ask.All(ctx, channel, c.exchange, request, 0, tellTimeout, func(a command.Answer) { c.hear(a.Told) })
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, command.ErrNoProcess) {
		c.logger.Info("Cannot ask other processes for limits of keys", watermill.LogFields{"err": err.Error()})
	}
}

// keyedOf returns the handlers with Breaker.Key on a queue, or on all where it is empty.
func (c *control) keyedOf(queue string) []keyed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.keyed), func(k keyed) bool { return queue != "" && k.queue != queue })
}

// add begins to consume commands over a connection.
func (c *control) add(broker subscriber.Broker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if broker.Number() <= c.number {
		return
	}
	if c.end != nil {
		c.end()
	}
	back := c.number > 0 // the numbers are those of all connections of the process
	c.number = broker.Number()
	var ctx context.Context
	ctx, c.end = context.WithCancel(c.Context)
	c.Go(func() { c.run(ctx, broker, back) })
}

// run consumes until the connection is lost, or the broker refuses for a reason that stays. It pauses between two
// connections, too: the broker ends that of all handlers where it cannot declare the queue.
func (c *control) run(ctx context.Context, broker subscriber.Broker, back bool) {
	logged := false
	for {
		if pauses.Sleep(ctx, c.pause()) != nil {
			return
		}
		channel, err := broker.OpenChannel()
		if err == nil {
			err = c.consume(ctx, channel, back)
		} else if wire.IsLost(err) {
			return
		}
		if err == nil {
			return
		}
		if !logged && !wire.IsLost(err) {
			logged = true
			c.logger.Error("Cannot consume the commands of wmretry order and key. Messages are handled all the same", err,
				watermill.LogFields{"exchange": c.exchange})
		}
		if refusal.IsCode(err, amqp091.AccessRefused) {
			return
		}
		c.mu.Lock()
		c.again = time.Now().Add(controlPause)
		c.mu.Unlock()
	}
}

func (c *control) pause() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Until(c.again)
}

// commandsOf returns a new name for a queue of commands. It begins with the name of the exchange, because users may
// have permissions for that only. The longest one leaves room for four random digits: where another process has the
// name, the broker refuses it, and run tries another one.
func commandsOf(exchange string) string {
	name := exchange + "." + watermill.NewUUID()
	return name[:min(len(name), queueNameLength)]
}

// consume returns why it has ended. Nil: at the end of ctx, or of the connection that has consumed. It tells other
// processes: at once over the first connection, and else after a while, as many may be back at the same moment.
func (c *control) consume(ctx context.Context, channel *amqp091.Channel, back bool) error {
	defer channel.Close()
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	cancels := channel.NotifyCancel(make(chan string, 1))
	if len(c.keyedOf("")) > 0 {
		// no topology has the exchange where no handler has Order.Partitions
		if err := channel.ExchangeDeclare(c.exchange, amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
			return refusal.Explain("declare the exchange of the commands", c.exchange, err)
		}
	}
	queue := commandsOf(c.exchange)
	_, err := channel.QueueDeclare(queue, false, true, true, false, amqp091.Table{
		queuearg.QueueType: amqp091.QueueTypeClassic, queuearg.MaxLength: int64(mostCommands),
	})
	if err != nil {
		return refusal.Explain("declare the queue of the commands", queue, err)
	}
	if err = channel.QueueBind(queue, "", c.exchange, false, nil); err != nil {
		return refusal.Explain("bind to exchange \""+c.exchange+"\" the queue", queue, err)
	}
	if err = channel.Qos(commandWindow, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.Consume(queue, "", false, true, false, false, nil)
	if err != nil {
		return refusal.Explain("consume", queue, err)
	}
	if len(c.keyedOf("")) > 0 { // a command before now has not come here
		c.Go(func() {
			if !back || pauses.Sleep(ctx, rand.N(tellSpread)) == nil {
				c.tell(ctx)
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, open := <-deliveries:
			if !open {
				if err := ended(cancels, closed); !wire.IsLost(err) {
					return err
				}
				return nil
			}
			c.answer(ctx, d)
			_ = d.Ack(false) // it fails where the deliveries end, too
		}
	}
}

var errNoQueue = errors.New("the queue of the commands was deleted")

// ended returns why the deliveries have ended. A cancel comes before their end, and all else after it.
func ended(cancels <-chan string, closed <-chan *amqp091.Error) error {
	select {
	case _, cancelled := <-cancels:
		if cancelled {
			return errNoQueue
		}
	default:
	}
	if reason := <-closed; reason != nil {
		return reason
	}
	return amqp091.ErrClosed
}

// answer carries out one command.
func (c *control) answer(ctx context.Context, d amqp091.Delivery) {
	a := command.Answer{PID: os.Getpid()}
	a.Host, _ = os.Hostname()
	request, err := command.Parse(d.Body)
	switch {
	case err != nil:
		a.Error = err.Error()
	case request.Do == command.Tell:
		c.hear(request.Told)
		a.Told = c.told()
	case request.Do == command.Limit:
		if a.Decided, a.Seen, err = c.limit(request, false); err != nil {
			a.Error = err.Error()
		}
	case request.Do == command.Skip, request.Do == command.Retry:
		if a.Decided = c.consuming.Decide(request.Queue, request.Key, request.Do == command.Skip); a.Decided > 0 {
			c.logger.Info("An operator has decided about blocked messages", watermill.LogFields{
				"queue": request.Queue, "key": request.Key, "do": request.Do, "messages": a.Decided})
		}
	}
	if !command.Replies(d.ReplyTo) || request.Do == command.Tell && len(a.Told) == 0 {
		return
	}
	switch {
	case request.OfKeys():
		for _, k := range c.keyedOf(request.Queue) {
			a.Keyed++
			for _, key := range k.gate.Keys() {
				a.Keys = append(a.Keys, command.Key{KeyState: key, Queue: k.queue, Handler: k.name})
			}
		}
	case err == nil && request.Do != command.Tell:
		a.Handlers = c.consuming.Handlers(request.Queue)
	}
	if err := c.reply(ctx, d, a.Marshal()); err != nil && ctx.Err() == nil {
		c.logger.Error("Cannot answer a command of wmretry order or wmretry key", err, nil)
	}
}

func (c *control) reply(ctx context.Context, to amqp091.Delivery, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	channel, err := c.publishing.Channel(ctx)
	if err != nil {
		return err
	}
	return within(ctx, channel, func() error {
		return channel.PublishWithContext(ctx, "", to.ReplyTo, false, false, amqp091.Publishing{
			ContentType: "application/json", CorrelationId: to.CorrelationId, Body: body,
		})
	})
}

// within does something on a channel, and closes it. It waits until the end of ctx only: under an alarm the broker
// answers nothing, and what is done ends with the connection.
func within(ctx context.Context, channel *amqp091.Channel, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- cmp.Or(do(), channel.Close()) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
