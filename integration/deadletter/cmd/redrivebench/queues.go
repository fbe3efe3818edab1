package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// queues are a work queue and its dead letters, declared as the library does.
type queues struct {
	work, dead string
	topology   topology.Topology
	connection *amqp091.Connection
	channel    *amqp091.Channel // with confirms
}

func (b bench) declare() (*queues, error) {
	work := "redrivebench_" + rand.Text()[:8]
	q := &queues{work: work, dead: deadletter.QueueOf(work)}
	q.topology = topology.New(topology.Config{Schedule: backoff.Schedule{time.Minute}, Prefix: work + "_retry"},
		topology.Queue{Name: work, Durable: true, Arguments: amqp091.Table{"x-queue-type": "quorum"}})
	var err error
	if q.connection, err = amqp091.Dial(b.uri); err != nil {
		return nil, err
	}
	if q.channel, err = q.connection.Channel(); err == nil {
		err = errors.Join(q.channel.Confirm(false), q.topology.Declare(q.channel))
	}
	if err != nil {
		return nil, errors.Join(err, q.remove())
	}
	return q, nil
}

func (q *queues) remove() error {
	defer func() { _ = q.connection.Close() }()
	channel, err := q.connection.Channel()
	if err != nil {
		return err
	}
	for _, queue := range append(q.topology.Queues, q.topology.WorkQueue) {
		if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
			return err
		}
	}
	for _, exchange := range q.topology.Exchanges {
		if err := channel.ExchangeDelete(exchange.Name, false, false); err != nil {
			return err
		}
	}
	return nil
}

// most is how many publishes may wait for their confirm.
const most = 1000

// fill publishes dead letters as the library does.
func (q *queues) fill(ctx context.Context, letters, size int) error {
	body := bytes.Repeat([]byte("x"), size)
	var confirms []*amqp091.DeferredConfirmation
	for i := range letters {
		confirm, err := q.channel.PublishWithDeferredConfirmWithContext(ctx, q.topology.Exchange(), "dead."+q.work, true, false, letter(i, body))
		if err != nil {
			return err
		}
		if confirms = append(confirms, confirm); len(confirms) == most || i == letters-1 {
			for _, confirm := range confirms {
				if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
					return fmt.Errorf("a letter is not confirmed: %w", err)
				}
			}
			confirms = confirms[:0]
		}
	}
	return nil
}

// letter is a dead letter, with a record as the middleware writes it.
func letter(i int, body []byte) amqp091.Publishing {
	at := time.Now().Add(-time.Hour)
	metadata := message.Metadata{}
	retry.Record{
		Failures: 5, FirstFailedAt: at, LastFailedAt: at.Add(time.Minute), Topic: "orders", Handler: "ship", Subscriber: "rabbitmq.Subscriber",
		Reason: "dial 10.0.0." + strconv.Itoa(i%250) + ":5432: connection refused", ErrorType: "*net.OpError", DeadReason: retry.DeadReasonExhausted,
	}.Write(metadata)
	headers := amqp091.Table{"_watermill_message_uuid": fmt.Sprintf("%08d-0000-4000-8000-000000000000", i), "customer": strconv.Itoa(i % 1000)}
	for key, value := range metadata {
		headers[key] = value
	}
	return amqp091.Publishing{DeliveryMode: amqp091.Persistent, ContentType: "application/json", Headers: headers, Body: body}
}
