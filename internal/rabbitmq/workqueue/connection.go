package workqueue

import (
	"context"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// closeTimeout bounds the wait for the broker's answer to a close.
const closeTimeout = 2 * time.Second

// Broker is what an inspection uses of the broker.
type Broker interface {
	// OpenChannel opens a channel. The broker closes it with each refusal.
	OpenChannel() (*amqp091.Channel, error)

	// Publishing opens a channel that publishes. Its connection must not consume: in an alarm the broker blocks a
	// connection that publishes, acks included.
	Publishing(ctx context.Context) (*amqp091.Channel, error)

	// Version is that of the broker, as it names it.
	Version() string
}

// Idle is the Broker of a connection that does not consume.
type Idle struct{ Connection *amqp091.Connection }

func (i Idle) OpenChannel() (*amqp091.Channel, error)               { return i.Connection.Channel() }
func (i Idle) Publishing(context.Context) (*amqp091.Channel, error) { return i.Connection.Channel() }

func (i Idle) Version() string {
	version, _ := i.Connection.Properties["version"].(string)
	return version
}

// Dial calls use with a connection of its own, which is closed afterwards.
func (i *Inspector) Dial(queue string, use func(Broker) error) error {
	client := i.config.Wire.Client("watermill-retry topology")
	connection, socket, err := wire.Open(context.Background(), i.config.Wire.URI, client, nil)
	if err != nil {
		return fmt.Errorf("cannot connect to inspect work queue %q: %w", queue, err)
	}
	defer wire.Close(connection, socket, closeTimeout)
	return use(Idle{connection})
}
