// Package wire connects to the broker: it opens and closes AMQP connections without waiting for a peer that does not
// answer, a Link keeps one open, and Once remembers what was declared on it.
package wire

import (
	"context"
	"fmt"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// defaultTimeout is that of amqp091-go for an address without connection_timeout.
const defaultTimeout = 30 * time.Second

// Open connects as amqp091.DialConfig does. The address's connection_timeout bounds the dial and the handshake, also
// with the app's own Dial. The end of ctx ends the attempt. wrap, if it is not nil, wraps the socket; Open returns the
// wrapped one.
func Open(
	ctx context.Context, address string, config amqp091.Config, wrap func(net.Conn) net.Conn,
) (*amqp091.Connection, net.Conn, error) {
	timeout := defaultTimeout
	if uri, err := amqp091.ParseURI(address); err == nil && uri.ConnectionTimeout > 0 {
		timeout = time.Duration(uri.ConnectionTimeout) * time.Millisecond
	}
	dialer := config.Dial
	if dialer == nil {
		// amqp091.DefaultDial cannot be cancelled.
		dialer = func(network, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: timeout}).DialContext(ctx, network, address)
		}
	}
	var socket net.Conn
	release := func() (timedOut bool) { return false }
	config.Dial = func(network, address string) (net.Conn, error) {
		inner, err := dialer(network, address)
		if err != nil {
			return nil, err
		}
		socket = inner
		if wrap != nil {
			socket = wrap(inner)
		}
		// A peer may accept the connection and then not answer.
		limit := time.AfterFunc(timeout, func() { _ = inner.Close() })
		cancel := context.AfterFunc(ctx, func() { _ = inner.Close() })
		release = func() bool {
			cancel()
			return !limit.Stop()
		}
		return socket, nil
	}
	connection, err := amqp091.DialConfig(address, config)
	timedOut := release()
	if err != nil {
		if socket != nil {
			_ = socket.Close() // amqp091-go leaves it open after a failed handshake
		}
		if timedOut {
			err = fmt.Errorf("no answer within %v: %w", timeout, err)
		}
		return nil, nil, err
	}
	return connection, socket, nil
}
