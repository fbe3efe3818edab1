package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const dialTimeout = 5 * time.Second

func dial(ctx context.Context, uri string) (*amqp091.Connection, error) {
	if _, err := amqp091.ParseURI(uri); err != nil { // the error can quote the password
		return nil, errors.New("the broker's address is invalid: it must have the form amqp://user:password@host:5672/vhost, " +
			"with reserved characters percent-encoded")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	connection, err := amqp091.DialConfig(uri, amqp091.Config{
		Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return conn, conn.SetDeadline(time.Now().Add(dialTimeout)) // for the handshake; amqp091 removes it afterwards
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the broker at %s: %w", place(uri), err)
	}
	return connection, nil
}

// place returns the broker's address without user and password.
func place(uri string) string {
	parsed, err := amqp091.ParseURI(uri)
	if err != nil {
		return "an invalid address"
	}
	return fmt.Sprintf("%s://%s:%d, virtual host %q", parsed.Scheme, parsed.Host, parsed.Port, parsed.Vhost)
}

// checkBroker connects once. It returns the broker's name and version, or an error of one line.
func checkBroker(ctx context.Context, uri string) (version string, err error) {
	connection, err := dial(ctx, uri)
	if err != nil {
		return "", err
	}
	version = fmt.Sprintf("%v %v", connection.Properties["product"], connection.Properties["version"])
	return version, connection.Close()
}

// remove deletes all queues and exchanges of the demo. A topology is plain data, so it can be walked through.
func remove(ctx context.Context, uri string, t topology.Topology) error {
	connection, err := dial(ctx, uri)
	if err != nil {
		return fmt.Errorf("queues and exchanges of %q are left on the broker: %w", t.WorkQueue.Name, err)
	}
	defer func() { _ = connection.Close() }()

	var faults []error
	try := func(name string, remove func(*amqp091.Channel) error) {
		channel, err := connection.Channel() // one channel each, because an error closes the channel
		if err == nil {
			err = remove(channel)
			_ = channel.Close()
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%q may be left on the broker: %w", name, err))
		}
	}
	for _, queue := range append(t.Queues, t.WorkQueue) {
		try(queue.Name, func(channel *amqp091.Channel) error {
			_, err := channel.QueueDelete(queue.Name, false, false, false)
			return err
		})
	}
	for _, exchange := range t.Exchanges {
		try(exchange.Name, func(channel *amqp091.Channel) error { return channel.ExchangeDelete(exchange.Name, false, false) })
	}
	if len(faults) > 1 {
		return fmt.Errorf("%w; and %d more", faults[0], len(faults)-1)
	}
	return errors.Join(faults...)
}
