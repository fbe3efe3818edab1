package publisher

import (
	"context"
	"errors"
	"fmt"
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
	openTimeout  = 10 * time.Second // a broker that does not open a channel for so long is taken for dead
	closeTimeout = 5 * time.Second
)

// A connection is one life of an AMQP connection.
type connection struct {
	client  *amqp091.Connection
	socket  *socket
	limits  limits
	blocked atomic.Bool
	gone    chan struct{} // closed when it is lost or closed
	reason  error         // set before gone is closed; nil: closed by us
}

// dial opens a connection; ctx ends the attempt.
func (p *Publisher) dial(ctx context.Context) (*connection, error) {
	uri, err := parseURI(p.config.URI)
	if err != nil {
		return nil, err
	}
	var conn *socket
	opened, _, err := dial.Open(ctx, p.config.URI, p.config.amqpConfig(), func(inner net.Conn) net.Conn {
		conn = newSocket(inner, p.config.WriteTimeout)
		return conn
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w%s", place(uri), err, hintOf(uri, err))
	}
	return p.adopt(opened, conn), nil
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

func (p *Publisher) adopt(opened *amqp091.Connection, conn *socket) *connection {
	c := &connection{client: opened, socket: conn, gone: make(chan struct{})}
	c.limits = limits{frameMax: opened.Config.FrameSize}
	if len(opened.Config.SASL) > 0 {
		switch auth := opened.Config.SASL[0].(type) {
		case *amqp091.PlainAuth:
			c.limits.user = auth.Username
		case *amqp091.AMQPlainAuth:
			c.limits.user = auth.Username
		}
	}
	blocks := opened.NotifyBlocked(make(chan amqp091.Blocking, 16))
	closed := opened.NotifyClose(make(chan *amqp091.Error, 1))
	p.workers.Go(func() {
		for block := range blocks {
			c.blocked.Store(block.Active)
			if block.Active {
				p.logger.Error("The broker has blocked the connection", nil, watermill.LogFields{"reason": block.Reason})
			} else {
				p.logger.Info("The broker has unblocked the connection", nil)
			}
		}
	})
	p.workers.Go(func() {
		if err := <-closed; err != nil {
			c.reason = err
		}
		close(c.gone)
	})
	return c
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
