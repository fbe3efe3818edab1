package workqueue

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// Broker is what an inspection uses of the broker.
type Broker interface {
	// Channel returns a channel for declarations, which the caller does not close. The broker closes it with each
	// refusal: the next call opens another one.
	Channel() (*amqp091.Channel, error)

	// Publishing opens a channel that publishes. Its connection must not consume: in an alarm the broker blocks a
	// connection that publishes, acks included.
	Publishing(ctx context.Context) (*amqp091.Channel, error)

	// Blocked reports whether an alarm of the broker blocks the connection that publishes.
	Blocked() bool

	// Version is that of the broker, as it names it.
	Version() string
}

// Idle is the Broker of a connection that does not consume. Its channel ends with the connection, unless it is closed
// before.
type Idle struct {
	wire.Reopening
	connection *wire.Connection
}

// NewIdle returns the Broker of a connection.
func NewIdle(connection *wire.Connection) *Idle {
	return &Idle{wire.Reopening{On: connection}, connection}
}

func (i *Idle) Publishing(context.Context) (*amqp091.Channel, error) {
	return i.connection.OpenChannel()
}

func (i *Idle) Blocked() bool { return i.connection.Blocked.Load() }

func (i *Idle) Version() string { return i.connection.Version() }

// Dial calls use with a connection of its own, which is closed afterwards, and when ctx ends: the error then has the
// cause. Where the broker is at fault, it tries again.
func Dial(
	ctx context.Context, config wire.Config, queue string, logger watermill.LoggerAdapter, use func(Broker) error,
) error {
	return wire.AtStart(ctx, config.Pause(), logger, func(ctx context.Context) error {
		connection, err := config.Connect(ctx, "watermill-retry topology", nil)
		if err == nil {
			err = Use(ctx, connection, use)
		} else {
			err = fmt.Errorf("%w: cannot connect to inspect work queue %q: %w", publish.ErrNotConnected, queue, err)
		}
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return err
	}, func(error) {})
}

// Use calls use with a connection, and closes it afterwards, and when ctx ends.
func Use(ctx context.Context, connection *wire.Connection, use func(Broker) error) error {
	defer context.AfterFunc(ctx, func() { _ = connection.Socket.Close() })()
	defer connection.Close()
	return use(NewIdle(connection))
}
