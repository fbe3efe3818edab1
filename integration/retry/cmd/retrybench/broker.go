package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const (
	payloadBytes = 512
	deadSuffix   = ".dead" // of the queue with the dead letters of a work queue, on every side
)

// with runs a function with a channel of a connection of its own.
func with(uri string, do func(*amqp091.Channel) error) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	return do(channel)
}

// brokerVersion returns the version of RabbitMQ, such as "4.0.5".
func brokerVersion(uri string) (string, error) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	version, _ := connection.Properties["version"].(string)
	return version, nil
}

// atLeast compares major and minor of a version.
func atLeast(version, least string) bool {
	var major, minor, leastMajor, leastMinor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	_, _ = fmt.Sscanf(least, "%d.%d", &leastMajor, &leastMinor)
	return major > leastMajor || major == leastMajor && minor >= leastMinor
}

// quorum returns a queue for a side that declares its queues by hand.
func quorum(name string, arguments amqp091.Table) topology.Queue {
	all := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	for key, value := range arguments {
		all[key] = value
	}
	return topology.Queue{Name: name, Durable: true, Arguments: all}
}

// atLeastOnce makes the queues that are declared by hand as safe as the library's tiers.
var atLeastOnce bool

// byHand is the topology that a user writes by hand: messages wait on one queue, and come back through the default exchange.
func byHand(work string) topology.Topology {
	arguments := amqp091.Table{
		"x-message-ttl": tier.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work,
	}
	if atLeastOnce {
		arguments["x-dead-letter-strategy"], arguments["x-overflow"] = "at-least-once", "reject-publish"
	}
	return topology.Topology{
		WorkQueue: quorum(work, nil),
		Queues:    []topology.Queue{quorum(work+deadSuffix, nil), quorum(waiting(work), arguments)},
	}
}

func waiting(work string) string { return work + ".waiting" }

func declareQueues(channel *amqp091.Channel, t topology.Topology) error {
	for _, queue := range append([]topology.Queue{t.WorkQueue}, t.Queues...) {
		if _, err := channel.QueueDeclare(queue.Name, queue.Durable, false, false, false, queue.Arguments); err != nil {
			return err
		}
	}
	return nil
}

// fill publishes the messages of an app, and waits until the broker has confirmed all of them.
func fill(channel *amqp091.Channel, queue string, messages int) error {
	if err := channel.Confirm(false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	confirms := make([]*amqp091.DeferredConfirmation, messages)
	payload := []byte(strings.Repeat("x", payloadBytes))
	for i := range messages {
		var err error
		confirms[i], err = channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, Headers: amqp091.Table{publisher.UUIDHeader: idOf(i)}, Body: payload,
		})
		if err != nil {
			return err
		}
		if i >= 1000 { // a broker with a long backlog of unconfirmed messages is slower
			if _, err := confirms[i-1000].WaitContext(ctx); err != nil {
				return err
			}
		}
	}
	for i, confirm := range confirms {
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("message %d was not confirmed (%w)", i, err)
		}
	}
	return nil
}

// checkDead compares the dead letters with those of the app, by identity. Where the broker dead-letters by itself, they come late.
func checkDead(uri, queue string, a *app) error {
	return with(uri, func(channel *amqp091.Channel) error {
		missing := map[int]bool{}
		for i := range a.calls {
			if a.dies(i) {
				missing[i] = true
			}
		}
		for deadline := time.Now().Add(30 * time.Second); len(missing) > 0; {
			d, ok, err := channel.Get(queue, true)
			if err != nil {
				return err
			}
			if !ok {
				if time.Now().After(deadline) {
					return fmt.Errorf("lost messages: %d of those that failed %d times are not on %s", len(missing), tries, queue)
				}
				time.Sleep(10 * time.Millisecond)
				continue
			}
			id, _ := d.Headers[publisher.UUIDHeader].(string)
			message, err := a.messageOf(id)
			if err != nil {
				return err
			}
			if !a.dies(message) {
				return fmt.Errorf("message %d was dead-lettered and must not be", message)
			}
			delete(missing, message)
		}
		return nil
	})
}
