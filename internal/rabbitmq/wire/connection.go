package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/socket"
)

const (
	// how long the broker may take to open a channel; after that the connection is closed
	openTimeout  = 10 * time.Second
	closeTimeout = 5 * time.Second // how long the broker may take to close the connection
	// how long one write to the socket may take; after that the connection is closed
	writeTimeout = 10 * time.Second
)

// ErrLost is the reason of a connection that ended without an error from the broker or the network.
var ErrLost error = lostError{}

type lostError struct{}

func (lostError) Error() string { return "the connection was lost" }

// Temporary reports that another try can succeed.
func (lostError) Temporary() bool { return true }

// ErrUnreadable is the reason of a connection that the client ended, because it cannot read what the broker sent: a
// message with headers beyond the client's limits. The broker delivers it again on the next connection.
var ErrUnreadable = errors.New("the client cannot read the headers of a message that the broker delivers: " +
	"docs/limits.md#messages-that-go-clients-cannot-read")

// reasonOf returns the error of a closed connection. The client has ErrSyntax only as a text.
func reasonOf(err *amqp091.Error) error {
	if !err.Server && strings.Contains(err.Reason, amqp091.ErrSyntax.Reason) {
		return fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return err
}

// A Connection is one AMQP connection, from its handshake to its end.
type Connection struct {
	Client  *amqp091.Connection
	Socket  *socket.Socket
	User    string        // empty: not known
	Blocked atomic.Bool   // kept up to date
	BodyMax atomic.Int64  // the broker's max_message_size, once it has refused a message; 0: not known
	Closed  chan struct{} // closed when the connection is lost or closed

	number uint64
	reason error // set before Closed is closed; nil: closed without an error
}

var connections atomic.Uint64

// Connect opens a connection. It calls report at each change of an alarm; nil: nothing is reported.
func (c Config) Connect(ctx context.Context, name string, report func(amqp091.Blocking)) (*Connection, error) {
	uri, err := ParseURI(c.URI)
	if err != nil {
		return nil, err
	}
	var conn *socket.Socket
	client, _, err := Open(ctx, c.URI, c.Client(name), func(inner net.Conn) net.Conn {
		conn = socket.New(inner, writeTimeout)
		return conn
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w%s", place(uri), err, hintOf(uri, err))
	}
	opened := &Connection{
		number: connections.Add(1),
		Client: client,
		Socket: conn,
		User:   userOf(client.Config.SASL),
		Closed: make(chan struct{}),
	}
	go opened.watch(client.NotifyBlocked(make(chan amqp091.Blocking, 16)),
		client.NotifyClose(make(chan *amqp091.Error, 1)), report)
	return opened, nil
}

// watch keeps c.Blocked up to date, and closes c.Closed when the connection is closed.
func (c *Connection) watch(
	blocks <-chan amqp091.Blocking, closes <-chan *amqp091.Error, report func(amqp091.Blocking),
) {
	defer close(c.Closed)
	for {
		select {
		case block, open := <-blocks:
			if !open { // closes follows
				blocks = nil
				continue
			}
			c.Blocked.Store(block.Active)
			if report != nil {
				report(block)
			}
		case err := <-closes:
			if err != nil {
				c.reason = reasonOf(err)
			}
			return
		}
	}
}

func userOf(sasl []amqp091.Authentication) string {
	if len(sasl) == 0 {
		return ""
	}
	switch auth := sasl[0].(type) {
	case *amqp091.PlainAuth:
		return auth.Username
	case *amqp091.AMQPlainAuth:
		return auth.Username
	}
	return ""
}

// Number identifies the connection. Each connection of the process has a higher one than those before it.
func (c *Connection) Number() uint64 { return c.number }

// Version is the version of the broker as it names it, such as "4.0.5". Empty: it names none.
func (c *Connection) Version() string {
	version, _ := c.Client.Properties["version"].(string)
	return version
}

// Channel opens a channel and sets it up. It closes the connection when the broker does not answer in time.
func (c *Connection) Channel(setUp func(*amqp091.Channel) error) (*amqp091.Channel, error) {
	limit := time.AfterFunc(openTimeout, func() { _ = c.Socket.Close() })
	defer limit.Stop()
	channel, err := c.Client.Channel()
	if err != nil {
		return nil, err
	}
	if err := setUp(channel); err != nil {
		_ = channel.Close()
		return nil, err
	}
	return channel, nil
}

// OpenChannel opens a channel, as Channel does.
func (c *Connection) OpenChannel() (*amqp091.Channel, error) {
	return c.Channel(func(*amqp091.Channel) error { return nil })
}

// Close closes the connection. It waits for the broker for a few seconds only: in an alarm, that reads nothing from a
// connection that has published, and each of its heartbeats extends amqp091-go's own deadline.
func (c *Connection) Close() {
	timer := time.AfterFunc(closeTimeout, func() { _ = c.Socket.Close() })
	defer timer.Stop()
	_ = c.Client.Close()
}

// CloseReason is why the connection was closed. It is called only after the close.
func (c *Connection) CloseReason() error {
	<-c.Closed
	if c.reason == nil {
		return ErrLost
	}
	return c.reason
}

// IsLost reports whether an error of the client means that the connection is lost: its socket is closed, or the broker
// has closed more than a channel. The client itself may notice that later.
func IsLost(err error) bool {
	var answer *amqp091.Error
	if errors.As(err, &answer) {
		return !answer.Recover
	}
	return isOfSocket(err)
}

func isOfSocket(err error) bool {
	for _, ended := range []error{
		net.ErrClosed, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, os.ErrDeadlineExceeded,
		syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, ended) {
			return true
		}
	}
	return false
}

// hintOf explains a connection that ended during the handshake. With TLS 1.3 the server refuses a client certificate
// after the client's part of the handshake is over. amqp091-go may then fail to write before it reads the server's
// alert.
func hintOf(uri amqp091.URI, err error) string {
	if uri.Scheme != "amqps" || !errors.Is(err, amqp091.ErrClosed) && !isOfSocket(err) {
		return ""
	}
	return ": the connection ended during the handshake; with TLS, the broker ends it when the client's certificate " +
		"is missing or refused"
}
