package publisher

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

const (
	openTimeout  = 10 * time.Second // how long the broker may take to open a channel; after that the connection is closed
	closeTimeout = 5 * time.Second  // how long the broker may take to close the connection
)

// A connection is one AMQP connection, from its handshake to its end.
type connection struct {
	client  *amqp091.Connection
	socket  *socket
	limits  limits
	blocked atomic.Bool
	blocks  chan amqp091.Blocking
	closes  chan *amqp091.Error
	closed  chan struct{} // closed when the connection is lost or closed
	reason  error         // set before closed is closed; nil: closed without an error, as the publisher does
}

func newConnection(client *amqp091.Connection, conn *socket) *connection {
	c := &connection{client: client, socket: conn, closed: make(chan struct{})}
	c.limits = limits{frameMax: client.Config.FrameSize}
	if len(client.Config.SASL) > 0 {
		switch auth := client.Config.SASL[0].(type) {
		case *amqp091.PlainAuth:
			c.limits.user = auth.Username
		case *amqp091.AMQPlainAuth:
			c.limits.user = auth.Username
		}
	}
	c.blocks = client.NotifyBlocked(make(chan amqp091.Blocking, 16))
	c.closes = client.NotifyClose(make(chan *amqp091.Error, 1))
	return c
}

// watchBlocked keeps c.blocked up to date until the connection is closed.
func (c *connection) watchBlocked(logger watermill.LoggerAdapter) {
	for block := range c.blocks {
		c.blocked.Store(block.Active)
		if block.Active {
			logger.Error("The broker has blocked the connection", errors.New(block.Reason), nil)
		} else {
			logger.Info("The broker has unblocked the connection", nil)
		}
	}
}

// watchClosed closes c.closed when the connection is closed.
func (c *connection) watchClosed() {
	if err := <-c.closes; err != nil {
		c.reason = err
	}
	close(c.closed)
}

// channel opens a channel in confirm mode.
func (c *connection) channel() (*amqp091.Channel, error) {
	limit := time.AfterFunc(openTimeout, func() { _ = c.socket.Close() })
	defer limit.Stop()
	channel, err := c.client.Channel()
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		_ = channel.Close()
		return nil, err
	}
	return channel, nil
}

func (c *connection) close() { dial.Close(c.client, c.socket, closeTimeout) }

var errConnectionLost = errors.New("the connection was lost")

// closeReason is why the connection was closed. It is called only after the close.
func (c *connection) closeReason() error {
	<-c.closed
	if c.reason == nil {
		return errConnectionLost
	}
	return c.reason
}

// hintOf explains a connection that ended during the handshake. With TLS 1.3 the server refuses a client certificate after the
// client's part of the handshake is over. amqp091-go may then fail to write before it reads the server's alert.
func hintOf(uri amqp091.URI, err error) string {
	ended := errors.Is(err, amqp091.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if uri.Scheme != "amqps" || !ended {
		return ""
	}
	return ": the connection ended during the handshake; with TLS, the broker ends it when the client's certificate is missing or refused"
}
