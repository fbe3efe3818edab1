package ordered

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Connection is one for consuming, with the AMQP connection that moves messages to partitions beside it.
type Connection struct {
	*subscriber.Connection
	config wire.Config
	logger watermill.LoggerAdapter // the logger for moving

	// moving is apart from what consumes: the broker blocks a connection that publishes, acks included, in an alarm. Nil:
	// nothing has been moved.
	moving  atomic.Pointer[wire.Link]
	opening chan struct{} // has a value while the link is opened or closed
}

// Open connects to the broker, as subscriber.Open does. The logger is not nil.
func Open(config wire.Config, logger watermill.LoggerAdapter) (*Connection, error) {
	consuming, err := subscriber.Open(config, logger)
	if err != nil {
		return nil, err
	}
	return &Connection{Connection: consuming, config: config, opening: make(chan struct{}, 1),
		logger: logger.With(watermill.LogFields{"connection": "moving"})}, nil
}

// Close closes all Subscribers of the connection, and then the connections. It may be called several times, and waits
// each time. It returns nil.
func (c *Connection) Close() error {
	_ = c.Connection.Close()
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	if moving := c.moving.Load(); moving != nil {
		moving.Close()
	}
	return nil
}

// mover returns the connection that moves messages to partitions, and opens it for the first.
func (c *Connection) mover(stop <-chan struct{}) (*wire.Connection, error) {
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	select {
	case <-stop: // else it would be opened after Close
		return nil, subscriber.ErrClosed
	default:
	}
	if c.moving.Load() == nil {
		link, err := wire.OpenLink(c.config, "watermill-retry mover", c.logger)
		if err != nil {
			return nil, err
		}
		c.moving.Store(link)
	}
	if current := c.moving.Load().Await(stop); current != nil {
		return current, nil
	}
	return nil, subscriber.ErrClosed
}

// Health returns the state of the connections, and of the calls of Subscribe that have not ended, in their order. It
// does not wait for the broker.
func (c *Connection) Health() retry.Health {
	h := c.Connection.Health()
	if moving := c.moving.Load(); moving != nil {
		h.Links = append(h.Links, moving.Health("moving"))
	}
	return h
}

// Handlers returns what the handlers with partitions do that consume a work queue.
func (c *Connection) Handlers(queue string) (all []command.Handler) {
	for _, s := range c.ordered(queue) {
		h := command.Handler{Name: s.Config.Name}
		for _, p := range s.partitions {
			h.Partitions = append(h.Partitions, p.status())
		}
		all = append(all, h)
	}
	return all
}

// Decide ends the block of the messages with a key, on all subscriptions of the connection that consume a work queue.
// It returns how many there were. A message that is skipped becomes a dead letter; the others are handled again, as if
// they had not failed.
func (c *Connection) Decide(queue, key string, skip bool) int {
	var count atomic.Int64
	for _, s := range c.ordered(queue) {
		s.Do(func() { // it may go on when Unmarshal has not returned
			for _, p := range s.partitions {
				count.Add(int64(p.decide(key, skip)))
			}
		})
	}
	return int(count.Load())
}

func (c *Connection) ordered(queue string) (all []*subscription) {
	for _, kind := range c.Kinds(queue) {
		if p, is := kind.(*partition); is {
			all = append(all, p.of)
		}
	}
	return all
}

// Config is the configuration of a Subscriber. Concurrency and OrderKey are those of all partitions together, and
// Prefetch is that of each, and required.
type Config struct {
	subscriber.Config

	// ConsumerTimeout is that of the broker. Required.
	ConsumerTimeout time.Duration

	// Partitions knows the queues. Required.
	Partitions Partitions
}

// Partitions are those of a topic.
type Partitions interface {
	// Queues returns the names of the partitions of a work queue, and of the queue on which each process has a
	// consumer.
	Queues(work string) (partitions []string, members string)

	// Route returns where a message of the intake goes, and what is published there. The message is that of the
	// delivery.
	Route(
		topic string, msg *message.Message, delivery amqp091.Delivery,
	) (exchange, key string, publishing amqp091.Publishing, err error)
}

// A Subscriber keeps the order of messages with one key through retries and across processes. A topic then has
// partitions, and its queue is the intake: what arrives there is moved to a partition.
type Subscriber struct {
	*subscriber.Subscriber
	connection *Connection
	config     Config
}

// NewSubscriber returns the Subscriber of a handler on a connection, as subscriber.NewSubscriber does.
func NewSubscriber(
	connection *Connection, handler subscriber.Handler, config Config, logger watermill.LoggerAdapter,
) *Subscriber {
	plain := config.Config
	plain.Prefetch = 0
	return &Subscriber{subscriber.NewSubscriber(connection.Connection, handler, plain, logger), connection, config}
}

// Subscribe consumes the topic's queue and its partitions, as Subscribe of a subscriber.Subscriber does.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := s.begin(ctx, topic)
	if err != nil {
		return nil, err
	}
	return sub.Start(sub)
}

// A subscription is one Subscribe call: a loop for the intake, and one for each partition.
type subscription struct {
	*subscriber.Subscription
	connection *Connection
	order      *Config

	partitions []*partition // the intake, then the others
	members    string       // the queue on which each process has a consumer
	balancing  sync.Mutex   // guards balanced, and makes partitions look one after the other
	balanced   time.Time    // when a partition was handed over
}

func (s *Subscriber) begin(ctx context.Context, topic string) (*subscription, error) {
	plain, err := s.Begin(ctx, topic)
	if err != nil {
		return nil, err
	}
	o := &subscription{Subscription: plain, connection: s.connection, order: &s.config}
	queues, members := s.config.Partitions.Queues(plain.Queue)
	o.members = members
	o.add(plain.Queue, -1)
	for i, queue := range queues {
		o.add(queue, i)
	}
	return o, nil
}

// Taken implements gate.Valve. What a partition has fetched is not meant for a probe: its prefetch does not follow the
// limit.
func (s *subscription) Taken() int { return s.Places.Taken() }
