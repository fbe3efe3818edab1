package door

import (
	"errors"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// DeadLetterReader is what a configuration for watermill-amqp's subscriber needs to read dead letters. It is safe for
// concurrent use.
type DeadLetterReader struct {
	app.Marshaler
	app    app.Config
	group  string
	topics sync.Map // the topic of each queue, for errors: watermill-amqp v2 gives its topology builder no topic
}

// NewDeadLetterReader returns an error that joins all faults of the app's configuration.
func NewDeadLetterReader(own app.Config, group string) (*DeadLetterReader, error) {
	var fault error
	if own.QueueName == nil {
		if group == "" {
			fault = errors.New("AMQP.Queue.GenerateName is nil, and there is no group: give the Group of the handler " +
				"whose dead letters are read, " +
				"or set a function that returns the name of a topic's queue")
		}
		own.QueueName = func(topic string) string { return topic } // reported, or not needed
	}
	if err := errors.Join(fault, validateNames(own), validateApp(own, topology.Leave)); err != nil {
		return nil, fmt.Errorf("invalid configuration of a reader of dead letters: %w", err)
	}
	return &DeadLetterReader{Marshaler: headers.NewDeadLetters(own.Marshaler), app: own, group: group}, nil
}

// QueueName returns the dead-letter queue of a topic's work queue.
func (r *DeadLetterReader) QueueName(topic string) string {
	dead := naming.DeadQueue(workQueueOf(r.app, r.group, topic))
	r.topics.Store(dead, topic)
	return dead
}

// Declare returns an error unless the queue exists. A reader that declared it would need schedule and options of the
// app.
func (r *DeadLetterReader) Declare(s app.Subscription) error {
	topic, _ := r.topics.Load(s.Queue)
	if err := naming.ValidateDeadQueue(s.Queue); err != nil {
		return fmt.Errorf("cannot read the dead letters of topic %q: %w", topic, err)
	}
	_, err := s.Channel.QueueDeclarePassive(s.Queue, true, false, false, false, nil)
	switch {
	case err == nil:
		return nil
	case refusal.IsCode(err, amqp091.NotFound):
		name := "Queue.GenerateName"
		if r.group != "" {
			name = fmt.Sprintf("the group %q", r.group)
		}
		return fmt.Errorf("cannot read the dead letters of topic %q: the queue %q does not exist, and a reader "+
			"declares nothing: "+
			"correct the topic or %s, or first start the app, whose subscriber declares the queue: "+
			"%w", topic, s.Queue, name, err)
	}
	return refusal.Explain("read the dead letters in", s.Queue, err)
}
