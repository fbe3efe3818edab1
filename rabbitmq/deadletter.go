package rabbitmq

import (
	"errors"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// DeadLetterSubscriberConfig returns a configuration for amqp.NewSubscriber that reads dead letters: Subscribe to a topic reads
// the dead-letter queue of the topic's work queue, whatever the prefix and schedule of the app that wrote them. It needs only the
// app's own configuration: address, names and marshaler. That is copied and never modified.
//
// The group is the Group of the handler (HandlerOptions) whose dead letters are read. Its work queue is named "<topic>_<group>", and
// Queue.GenerateName may be nil. Without a group ("") Queue.GenerateName names the work queue.
//
// It declares nothing. If the dead-letter queue does not exist, Subscribe returns an error. If the queue is deleted later, the
// subscriber logs the error at every attempt to consume again, and reads on when the app has declared the queue again.
//
// Every message has a failure record. If the broker itself dead-lettered the message, its dead reason is the broker's:
// delivery_limit, rejected, expired or maxlen. An ack removes the dead letter. Do not add the retry middleware to its handlers.
//
// The error joins all faults of the configuration: those for which NewBuilder refuses its field AMQP, except a queue that is not
// durable. It does not connect.
//
// Apps call it in package config or configamqp3, where C and M are set.
func DeadLetterSubscriberConfig[C any, M edge.Major[C]](app C, group string) (C, error) {
	var major M
	fields := major.Fields(&app)
	var fault error
	if fields.QueueName == nil {
		if group == "" {
			fault = errors.New("AMQP.Queue.GenerateName is nil, and there is no group: give the Group of the handler whose dead letters are read, " +
				"or set a function that returns the name of a topic's queue")
		}
		fields.SetQueueName(func(topic string) string { return topic }) // reported, or not needed
	}
	if err := errors.Join(fault, validateMajor[C, M](app), validateApp(fields, topology.Leave)); err != nil {
		var none C
		return none, fmt.Errorf("invalid configuration of a reader of dead letters: %w", err)
	}
	return readDeadLetters[C, M](app, group), nil
}

func readDeadLetters[C any, M edge.Major[C]](app C, group string) C {
	var major M
	queues := &deadLetterQueues{app: major.Fields(&app), group: group}
	fields := queues.app
	config := with[C, M](app, edge.Parts{
		Marshaler:    headers.NewDeadLetters(fields.Marshaler),
		QueueName:    queues.name,
		ExchangeName: func(string) string { return "" },
		Declare:      queues.verify,
	})
	*major.Fields(&config).ConsumeExclusive = false
	return config
}

// deadLetterQueues are the queues of one reader of dead letters. It is safe for concurrent use.
type deadLetterQueues struct {
	app    edge.Fields
	group  string
	topics sync.Map // of each queue, for errors: watermill-amqp v2 gives its topology builder no topic
}

func (q *deadLetterQueues) name(topic string) string {
	dead := naming.DeadQueue(workQueueOf(q.app, q.group, topic))
	q.topics.Store(dead, topic)
	return dead
}

// verify returns an error unless the queue exists. A reader that declared it would need schedule and options of the app.
func (q *deadLetterQueues) verify(s edge.Subscription) error {
	topic, _ := q.topics.Load(s.Queue)
	if err := naming.ValidateDeadQueue(s.Queue); err != nil {
		return fmt.Errorf("cannot read the dead letters of topic %q: %w", topic, err)
	}
	_, err := s.Channel.QueueDeclarePassive(s.Queue, true, false, false, false, nil)
	switch {
	case err == nil:
		return nil
	case refusal.IsCode(err, amqp091.NotFound):
		name := "Queue.GenerateName"
		if q.group != "" {
			name = fmt.Sprintf("the group %q", q.group)
		}
		return fmt.Errorf("cannot read the dead letters of topic %q: the queue %q does not exist, and a reader declares nothing: "+
			"correct the topic or %s, or first start the app, whose subscriber declares the queue: %w", topic, s.Queue, name, err)
	}
	return refusal.Explain("read the dead letters in", s.Queue, err)
}
