package publisher

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

// A connection is one AMQP connection, from its handshake to its end.
type connection struct {
	*dial.Connection
	limits limits
}

func newConnection(opened *dial.Connection) *connection {
	config := opened.Client.Config
	c := &connection{Connection: opened, limits: limits{frameMax: config.FrameSize}}
	if len(config.SASL) > 0 {
		switch auth := config.SASL[0].(type) {
		case *amqp091.PlainAuth:
			c.limits.user = auth.Username
		case *amqp091.AMQPlainAuth:
			c.limits.user = auth.Username
		}
	}
	return c
}

// watchBlocked logs when the broker blocks the connection, until the connection is closed.
func (c *connection) watchBlocked(logger watermill.LoggerAdapter) {
	c.WatchBlocked(func(block amqp091.Blocking) {
		if block.Active {
			logger.Error("The broker has blocked the connection", errors.New(block.Reason), nil)
		} else {
			logger.Info("The broker has unblocked the connection", nil)
		}
	})
}

// channel opens a channel in confirm mode.
func (c *connection) channel() (*amqp091.Channel, error) {
	return c.Channel(func(channel *amqp091.Channel) error { return channel.Confirm(false) })
}
