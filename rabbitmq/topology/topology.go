package topology

import (
	"fmt"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
)

// Topology is what one work queue needs on the broker, as plain data: the same value is declared, verified, printed and
// exported. wmretry topology export prints those of several work queues as definitions for RabbitMQ's management API.
type Topology struct {
	Exchanges []Exchange // the first takes the copies that wait
	Queues    []Queue    // the orphans, the dead-letter queue, the tiers, the inbox of the work queue
	WorkQueue Queue      // as it is declared if it does not exist
	Bindings  []Binding  // the work queue's are the last
	config    Config
	fault     error
}

// Exchange is an exchange of the topology.
type Exchange struct {
	Name      string        `json:"name"`
	Kind      string        `json:"type"`
	Durable   bool          `json:"durable"`
	Arguments amqp091.Table `json:"arguments"`
}

// Queue is a queue of the topology.
type Queue struct {
	Name      string        `json:"name"`
	Durable   bool          `json:"durable"`
	Arguments amqp091.Table `json:"arguments"`
}

// Binding binds a queue to an exchange.
type Binding struct {
	Exchange string `json:"source"`
	Queue    string `json:"destination"`
	Key      string `json:"routing_key"`
}

// DeadLetterQueue returns the name of the queue that receives the dead letters.
func (t Topology) DeadLetterQueue() string { return naming.DeadQueue(t.WorkQueue.Name) }

// Validate reports what makes the topology impossible: an invalid Config, or a work queue without a name, with the name
// of one of the topology's own queues, with the words * or # in its name, or with a name that is too long for AMQP (255
// bytes, its tier queues included).
func (t Topology) Validate() error { return t.fault }

// Declare declares everything, including the work queue. It may be repeated. If an object exists with other arguments
// or a permission is missing, the broker closes the channel; the error names the object, and is an
// *ArgumentConflictError in the first case.
func (t Topology) Declare(channel *amqp091.Channel) error {
	if t.fault != nil {
		return t.fault
	}
	if err := declareQueue(channel, t.WorkQueue); err != nil {
		return err
	}
	return t.DeclareRetry(channel)
}

// DeclareRetry declares everything except the work queue, which must exist. Use it if something else declares the work
// queue.
func (t Topology) DeclareRetry(channel *amqp091.Channel) error {
	if err := t.declareCopies(channel); err != nil {
		return err
	}
	return t.declareReturn(channel)
}

// declareCopies declares what copies are published to: everything except the work queue and the exchanges that it is
// bound to. Until the return exchange exists, messages that are due wait on their tier.
func (t Topology) declareCopies(channel *amqp091.Channel) error {
	if t.fault != nil {
		return t.fault
	}
	for _, exchange := range t.Exchanges {
		if t.returnsThrough(exchange) {
			continue
		}
		if err := declareExchange(channel, exchange); err != nil {
			return err
		}
	}
	for _, queue := range t.Queues {
		if err := declareQueue(channel, queue); err != nil {
			return t.advisePartition(t.advise(err))
		}
	}
	// The dead letters are bound after the tiers: a copy whose tier is missing becomes a dead letter once it can.
	for _, binding := range slices.Backward(t.Bindings) {
		if t.returns(binding) {
			continue
		}
		if err := bind(channel, binding); err != nil {
			return err
		}
	}
	return nil
}

// returnBindings returns the bindings through which messages come back to the work queue, or to its inbox.
func (t Topology) returnBindings() []Binding {
	return slices.DeleteFunc(slices.Clone(t.Bindings), func(b Binding) bool { return !t.returns(b) })
}

func (t Topology) returns(b Binding) bool {
	return b.Queue == t.WorkQueue.Name || b.Queue == t.config.prefix().InboxQueue(t.WorkQueue.Name)
}

func (t Topology) returnsThrough(e Exchange) bool {
	return slices.ContainsFunc(t.Bindings, func(b Binding) bool { return t.returns(b) && b.Exchange == e.Name })
}

// declareReturn declares the exchanges that messages come back through, alternate exchanges first, and binds the work
// queue to each at once: where all were gone, a message that is due before the first binding becomes an orphan.
func (t Topology) declareReturn(channel *amqp091.Channel) error {
	bindings := t.returnBindings()
	for _, exchange := range slices.Backward(t.Exchanges) {
		if !t.returnsThrough(exchange) {
			continue
		}
		if err := declareExchange(channel, exchange); err != nil {
			return err
		}
		for _, binding := range bindings {
			if binding.Exchange == exchange.Name {
				if err := bind(channel, binding); err != nil {
					return err
				}
			}
		}
	}
	for _, binding := range bindings {
		declared := slices.ContainsFunc(t.Exchanges, func(e Exchange) bool { return e.Name == binding.Exchange })
		if !declared { // the caller has removed the exchange, because it exists
			if err := bind(channel, binding); err != nil {
				return err
			}
		}
	}
	return nil
}

func declareExchange(channel *amqp091.Channel, exchange Exchange) error {
	err := channel.ExchangeDeclare(exchange.Name, exchange.Kind, exchange.Durable, false, false, false,
		exchange.Arguments)
	if err != nil {
		return refusal.Explain("declare exchange", exchange.Name, err)
	}
	return nil
}

func declareQueue(channel *amqp091.Channel, queue Queue) error {
	if _, err := channel.QueueDeclare(queue.Name, queue.Durable, false, false, false, queue.Arguments); err != nil {
		return refusal.Explain("declare queue", queue.Name, err)
	}
	return nil
}

func bind(channel *amqp091.Channel, binding Binding) error {
	if err := channel.QueueBind(binding.Queue, binding.Key, binding.Exchange, false, nil); err != nil {
		return refusal.Explain(fmt.Sprintf("bind to exchange %q with key %q the queue", binding.Exchange, binding.Key),
			binding.Queue, err)
	}
	return nil
}

// Verify checks that every exchange and queue exists, and declares nothing. It needs no permission to configure. It
// cannot check arguments and bindings, because AMQP 0-9-1 has no method to read them. At the first missing object the
// broker closes the channel; the error names the object.
func (t Topology) Verify(channel *amqp091.Channel) error {
	if t.fault != nil {
		return t.fault
	}
	for _, exchange := range t.Exchanges {
		err := channel.ExchangeDeclarePassive(exchange.Name, exchange.Kind, exchange.Durable, false, false, false, nil)
		if err != nil {
			return refusal.Explain("verify exchange", exchange.Name, err)
		}
	}
	for _, queue := range append([]Queue{t.WorkQueue}, t.Queues...) {
		if _, err := channel.QueueDeclarePassive(queue.Name, queue.Durable, false, false, false, nil); err != nil {
			return refusal.Explain("verify queue", queue.Name, err)
		}
	}
	return nil
}
