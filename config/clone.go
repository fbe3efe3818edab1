package config

import (
	"maps"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// clone copies all that a connection or a declaration could write into: amqp091-go itself writes into Properties and
// TLSClientConfig.
func clone(c amqp.Config) amqp.Config {
	c.Connection.TLSConfig = c.Connection.TLSConfig.Clone()
	if c.Connection.AmqpConfig != nil {
		connection := *c.Connection.AmqpConfig
		connection.Properties = cloneTable(connection.Properties)
		connection.TLSClientConfig = connection.TLSClientConfig.Clone()
		connection.SASL = append([]amqp091.Authentication(nil), connection.SASL...)
		c.Connection.AmqpConfig = &connection
	}
	if c.Connection.Reconnect != nil {
		reconnect := *c.Connection.Reconnect
		c.Connection.Reconnect = &reconnect
	}
	c.Exchange.Arguments = cloneTable(c.Exchange.Arguments)
	c.Queue.Arguments = cloneTable(c.Queue.Arguments)
	c.QueueBind.Arguments = cloneTable(c.QueueBind.Arguments)
	c.Consume.Arguments = cloneTable(c.Consume.Arguments)
	return c
}

func cloneTable(table amqp091.Table) amqp091.Table { return maps.Clone(table) }
