//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

const dialTimeout = 10 * time.Second

func dial(ctx context.Context, uri string) (*amqp091.Connection, error) {
	if _, err := amqp091.ParseURI(uri); err != nil { // the error can quote the password
		return nil, errors.New("the broker's address is invalid: it must have the form amqp://user:password@host:5672/vhost")
	}
	connection, err := amqp091.DialConfig(uri, amqp091.Config{
		Locale: "en_US",
		Dial: func(network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return conn, conn.SetDeadline(time.Now().Add(dialTimeout)) // for the handshake; amqp091 removes it afterwards
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot connect to RabbitMQ: %w", err)
	}
	return connection, nil
}

// checkBroker returns the broker's name and version. It refuses a work queue that exists: the demo would remove the messages of
// another app.
func checkBroker(ctx context.Context, uri, queue string) (version string, err error) {
	connection, err := dial(ctx, uri)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return "", err
	}
	var refusal *amqp091.Error
	_, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	switch {
	case err == nil:
		return "", fmt.Errorf("the queue %q exists on the broker: name another one with -queue, or remove what an earlier run has left with -clean", queue)
	case !errors.As(err, &refusal) || refusal.Code != amqp091.NotFound:
		return "", err
	}
	return fmt.Sprintf("%v %v", connection.Properties["product"], connection.Properties["version"]), nil
}

// removeQueues removes the queues of the demo: the work queue, its tiers and its dead letters. The exchanges and the queue of the
// orphans stay, because other apps on the broker can have the same ones.
func removeQueues(ctx context.Context, uri, queue string) error {
	connection, err := dial(ctx, uri)
	if err != nil {
		return fmt.Errorf("the queues of %q are left on the broker: %w", queue, err)
	}
	defer func() { _ = connection.Close() }()
	names := []string{queue, deadletter.QueueOf(queue)}
	for _, tier := range schedule.Tiers() {
		names = append(names, strings.Join([]string{queue, "retry", tier.String()}, "."))
	}
	var faults []error
	for _, name := range names {
		channel, err := connection.Channel() // one each, because an error closes the channel
		if err == nil {
			_, err = channel.QueueDelete(name, false, false, false)
			_ = channel.Close()
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("the queue %q may be left on the broker: %w", name, err))
		}
	}
	return errors.Join(faults...)
}
