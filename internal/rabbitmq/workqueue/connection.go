package workqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// closeTimeout bounds the wait for the broker's answer to a close.
const closeTimeout = 2 * time.Second

// Broker is what an inspection uses of the broker.
type Broker interface {
	// Channel returns a channel for declarations, which the caller does not close. The broker closes it with each
	// refusal: the next call opens another one.
	Channel() (*amqp091.Channel, error)

	// Publishing opens a channel that publishes. Its connection must not consume: in an alarm the broker blocks a
	// connection that publishes, acks included.
	Publishing(ctx context.Context) (*amqp091.Channel, error)

	// Version is that of the broker, as it names it.
	Version() string
}

// Idle is the Broker of a connection that does not consume.
type Idle struct {
	wire.Reopening
	connection *amqp091.Connection
}

// NewIdle returns the Broker of a connection. Its channel ends with the connection, unless it is closed before.
func NewIdle(connection *amqp091.Connection) *Idle {
	i := &Idle{connection: connection}
	i.On = i
	return i
}

// OpenChannel implements wire.Opener.
func (i *Idle) OpenChannel() (*amqp091.Channel, error) { return i.connection.Channel() }

func (i *Idle) Publishing(context.Context) (*amqp091.Channel, error) { return i.connection.Channel() }

func (i *Idle) Version() string {
	version, _ := i.connection.Properties["version"].(string)
	return version
}

// Dial calls use with a connection of its own, which is closed afterwards, and when ctx ends: the error then has the
// cause. Where the broker is at fault, it tries again.
func Dial(
	ctx context.Context, config wire.Config, queue string, logger watermill.LoggerAdapter, use func(Broker) error,
) error {
	return wire.AtStart(ctx, config.Pause(), logger, func(ctx context.Context) error {
		err := dial(ctx, config, queue, use)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}, func(error) {})
}

func dial(ctx context.Context, config wire.Config, queue string, use func(Broker) error) error {
	connection, socket, err := wire.Open(ctx, config.URI, config.Client("watermill-retry topology"), nil)
	if err != nil {
		return fmt.Errorf("%w: cannot connect to inspect work queue %q: %w", publish.ErrNotConnected, queue, err)
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	defer wire.Close(connection, socket, closeTimeout)
	return use(NewIdle(connection))
}
