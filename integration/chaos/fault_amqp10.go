package main

import (
	"context"
	"errors"
	"time"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/amqp10"
)

// requests is the name of a fault that disturbs no connection: it must cause no duplicates.
const requests = "amqp10-requests"

var publishers = []Fault{{requests, needsAMQP10, 10 * time.Second, sendRequests}}

// sendRequests publishes messages whose reply-to no AMQP 0-9-1 publisher can set. A copy with it would close the
// channel.
func sendRequests(ctx context.Context, l *Load) error {
	var senders [workQueues]*amqp.Sender
	for which := range workQueues {
		sender, end, err := amqp10.Dial(ctx, l.broker.URL, l.config.queue(which))
		if err != nil {
			return err
		}
		defer end()
		senders[which] = sender
	}
	for i := range workQueues * l.rounds(500, 50) {
		id := identityOf(l.Messages + i)
		m := amqp10.Message("order "+id, amqp10.ReplyTo)
		m.ApplicationProperties = map[string]any{"_watermill_message_uuid": id}
		if err := senders[queueOf(id)].Send(ctx, m, nil); err != nil {
			return err
		}
		l.ledger.confirmed(id, l.config.queue(queueOf(id)))
		sleep(ctx, 10*time.Millisecond)
	}
	if l.ledger.refused[connected].Load()+l.ledger.refused[stock].Load() > 0 {
		return errors.New("the broker refused copies")
	}
	return nil
}

// speaksAMQP10 is false where the broker does not answer.
func (b Broker) speaksAMQP10() bool {
	connection, err := amqp091.Dial(b.URL)
	if err != nil {
		return false
	}
	defer connection.Close()
	return amqp10.Spoken(connection)
}
