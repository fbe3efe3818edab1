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
type Broker struct {
	// Channel opens a channel. The broker closes it with each refusal.
	Channel func() (*amqp091.Channel, error)

	// Publishing opens a channel that publishes. Its connection must not consume: in an alarm the broker blocks a
	// connection that publishes, acks included.
	Publishing func(ctx context.Context) (*amqp091.Channel, error)

	// Version is that of the broker, as it names it.
	Version string
}

// Dial calls use with a connection of its own, which is closed afterwards.
func (i *Inspector) Dial(queue string, use func(Broker) error) error {
	connection, socket, err := wire.Open(context.Background(), i.config.URI, i.config.Connection(), nil)
	if err != nil {
		return fmt.Errorf("cannot connect to inspect work queue %q: %w", queue, err)
	}
	defer wire.Close(connection, socket, closeTimeout)
	version, _ := connection.Properties["version"].(string)
	return use(Broker{
		Channel:    connection.Channel,
		Publishing: func(context.Context) (*amqp091.Channel, error) { return connection.Channel() },
		Version:    version,
	})
}
