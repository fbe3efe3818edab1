package ordered

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
)

// Config is the configuration of a Subscriber. Concurrency and OrderKey are those of all partitions together, and
// Prefetch is that of each.
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
) (*Subscriber, error) {
	plain := config.Config
	plain.Prefetch = 0
	s, err := subscriber.NewSubscriber(connection.Connection, handler, plain, logger)
	if err != nil {
		return nil, err
	}
	return &Subscriber{s, connection, config}, nil
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
