package workqueue

import (
	"context"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

// closeTimeout bounds the wait for the broker's answer to a close.
const closeTimeout = 2 * time.Second

// connection is one that exists for one inspection only.
type connection struct {
	*amqp091.Connection
	socket net.Conn
}

func open(uri string, config amqp091.Config) (*connection, error) {
	opened, socket, err := dial.Open(context.Background(), uri, config, nil)
	if err != nil {
		return nil, err
	}
	return &connection{opened, socket}, nil
}

func (c *connection) close() { dial.Close(c.Connection, c.socket, closeTimeout) }

func (c *connection) version() version {
	text, _ := c.Properties["version"].(string)
	return parseVersion(text)
}
