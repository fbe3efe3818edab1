// Package amqp10 publishes over AMQP 1.0, for tests of messages that no AMQP 0-9-1 publisher can make.
package amqp10

import (
	"context"
	"net"
	"strconv"
	"strings"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// ReplyTo is the address of RabbitMQ's direct reply-to. Of an AMQP 1.0 publisher, it reaches consumers of AMQP 0-9-1.
const ReplyTo = "amq.rabbitmq.reply-to"

// Spoken reports whether the broker at an AMQP 0-9-1 connection speaks AMQP 1.0 itself, as from 4.0 on. Before, a
// plugin translates AMQP 1.0 to AMQP 0-9-1, which refuses what these tests publish.
func Spoken(connection *amqp091.Connection) bool {
	version, _ := connection.Properties["version"].(string)
	return !strings.HasPrefix(version, "3.")
}

// Dial opens a connection that sends to a queue, at the address of AMQP 0-9-1. Call end to close it.
func Dial(ctx context.Context, address, queue string) (sender *amqp.Sender, end func(), err error) {
	uri, err := amqp091.ParseURI(address)
	if err != nil {
		return nil, nil, err
	}
	connection, err := amqp.Dial(ctx, "amqp://"+net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), &amqp.ConnOptions{
		SASLType: amqp.SASLTypePlain(uri.Username, uri.Password), HostName: "vhost:" + uri.Vhost,
	})
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = connection.Close() }
	session, err := connection.NewSession(ctx, nil)
	if err == nil {
		sender, err = session.NewSender(ctx, "/queues/"+queue, nil)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return sender, end, nil
}

// Message returns a durable message. An empty replyTo is none.
func Message(body, replyTo string) *amqp.Message {
	m := amqp.NewMessage([]byte(body))
	m.Header = &amqp.MessageHeader{Durable: true}
	if replyTo != "" {
		m.Properties = &amqp.MessageProperties{ReplyTo: &replyTo}
	}
	return m
}
