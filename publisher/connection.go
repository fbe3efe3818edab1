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

	"github.com/tieredretry/watermill-retry/internal/dial"
)

const (
	openTimeout  = 10 * time.Second // after this the broker counts as dead
	closeTimeout = 5 * time.Second
)

// A connection is one AMQP connection, from its handshake to its end.
type connection struct {
	client  *amqp091.Connection
	socket  *socket
	limits  limits
	blocked atomic.Bool
	blocks  chan amqp091.Blocking
	closes  chan *amqp091.Error
	gone    chan struct{} // closed when it is lost or closed
	reason  error         // set before gone is closed; nil: closed by us
}

func newConnection(client *amqp091.Connection, conn *socket) *connection {
	c := &connection{client: client, socket: conn, gone: make(chan struct{})}
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

// watchClosed closes c.gone when the connection is closed.
func (c *connection) watchClosed() {
	if err := <-c.closes; err != nil {
		c.reason = err
	}
	close(c.gone)
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

var errGone = errors.New("the connection was lost")

// lost is why the connection is gone; it is to be called once it is closed.
func (c *connection) lost() error {
	<-c.gone
	if c.reason == nil {
		return errGone
	}
	return c.reason
}

// hintOf explains a connection that ended in the handshake. TLS 1.3 refuses a client after it has begun to talk, and amqp091-go
// may trip over the closed connection before it has read why.
func hintOf(uri amqp091.URI, err error) string {
	ended := errors.Is(err, amqp091.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if uri.Scheme != "amqps" || !ended {
		return ""
	}
	return ": the connection ended in its handshake; over TLS a broker ends it where it misses or refuses the client's certificate"
}
