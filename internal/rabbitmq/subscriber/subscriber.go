package subscriber

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// A Subscriber consumes queues over a shared Connection. Each Subscribe call has a channel and a consumer of its own,
// with Config.Concurrency calls and Config.Prefetch messages in flight. All its methods are safe for concurrent use.
type Subscriber struct {
	connection *Connection
	handler    Handler
	config     Config
	logger     watermill.LoggerAdapter

	closing context.Context // ends with Close
	close   context.CancelCauseFunc
}

// NewSubscriber returns the Subscriber of a handler on a connection, which stays open when the Subscriber is closed.
func NewSubscriber(
	connection *Connection, handler Handler, config Config, logger watermill.LoggerAdapter,
) *Subscriber {
	config.setDefaults()
	s := &Subscriber{connection: connection, handler: handler, config: config, logger: logger}
	s.closing, s.close = context.WithCancelCause(context.Background())
	return s
}

// Subscribe consumes the topic's queue until ctx ends, or until Close, and then closes the channel that it returns. It
// calls Handler.Declare first, and returns its error. It returns an error that wraps publish.ErrNotConnected, at once,
// while there is no connection. Where the broker is at fault, as with its internal error (541), it tries again for up
// to 30 seconds. After a loss of the connection, and when the broker cancels the consumer, it declares and consumes
// again by itself. After a cancel it waits for 1 to 2 s: the client that has deleted the queue may be deleting others.
//
// Each message has to be acked or nacked. One that never is keeps its place of Config.Concurrency until Close.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	sub, err := s.Begin(ctx, topic)
	if err != nil {
		return nil, err
	}
	newPlain(sub)
	return sub.Start(sub)
}

// SubscribeInitialize calls Handler.Declare for the topic, so that its queue exists before messages are published.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if s.closing.Err() != nil {
		return ErrClosed
	}
	logger := s.logger.With(watermill.LogFields{"topic": topic})
	return wire.AtStart(s.closing, s.connection.config.Pause(), logger, func(ctx context.Context) error {
		current, err := s.connection.link.Now()
		if err != nil {
			return err
		}
		declared := make(chan error, 1)
		go func() { declared <- s.declare(current, topic, time.Now()) }()
		select {
		case err = <-declared:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, func(error) {})
}

// Close ends all subscriptions: it cancels their consumers, gives back what was not handed out, and waits for messages
// in flight, at most for Config.CloseTimeout and one second. It may be called several times, and waits each time. It
// returns nil. The connection stays open.
func (s *Subscriber) Close() error {
	s.close(ErrClosed)
	s.connection.end(s)
	return nil
}

func (s *Subscriber) queueOf(topic string) (queue string, err error) {
	err = panics.Error("QueueOf", func() (err error) { queue, err = s.handler.QueueOf(topic); return err })
	switch {
	case err != nil:
	case queue == "":
		err = fmt.Errorf("topic %q: its queue has no name", topic)
	case len(queue) > channel.MaxShortString:
		err = fmt.Errorf("topic %q: the name of its queue has %d bytes, at most %d", topic, len(queue),
			channel.MaxShortString)
	}
	return queue, err
}

// ErrClosed is returned by Subscribe and SubscribeInitialize when the Subscriber or its Connection is closed.
var ErrClosed = errors.New("the subscriber is closed")
