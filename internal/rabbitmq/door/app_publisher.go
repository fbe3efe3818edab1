package door

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// appPublisher publishes the app's own messages, and explains what no queue got. It declares their exchanges.
type appPublisher struct {
	core       *core
	connection *publisher.Connection
	exchanges  *publisher.Declarations // nil with VerifyOnly
}

func newAppPublisher(c *core, connection *publisher.Connection) appPublisher {
	p := appPublisher{core: c, connection: connection}
	if !c.verifyOnly {
		p.exchanges = connection.NewDeclarations("the app's declaration of the exchange")
	}
	return p
}

// check reports why a topic cannot be published to.
func (p appPublisher) check(topic string) error {
	_, _, err := p.route(topic)
	return err
}

func (p appPublisher) route(topic string) (exchange, routingKey string, err error) {
	if p.core.app.RoutingKey == nil {
		return "", "", errors.New("AMQP.Publish.GenerateRoutingKey is nil: it must return the routing key of a " +
			"topic's messages")
	}
	exchange = p.core.app.ExchangeName(topic)
	return exchange, p.core.app.RoutingKey(topic), p.core.prefix.ValidateExchange(exchange, p.core.topology.TierGroup)
}

// send publishes messages, and declares their exchange.
func (p appPublisher) send(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	began := time.Now()
	exchange, key, routed := p.route(topic)
	var one [1]publisher.Message
	all := one[:0]
	for _, msg := range messages {
		m := publisher.Message{Exchange: exchange, RoutingKey: key}
		if routed != nil {
			return m.Failure(publish.ErrRefused, routed)
		}
		if msg == nil {
			return m.Failure(publish.ErrRefused, errors.New("the message is nil"))
		}
		m.Context, m.UUID = msg.Context(), msg.UUID
		var err error
		if m.Publishing, err = p.marshal(msg); err != nil {
			return m.Failure(publish.ErrRefused, err)
		}
		all = append(all, m)
	}
	if failures, ordered, err := p.inOrder(all, messages); ordered {
		if err != nil {
			return err
		}
		return join(failures)
	}
	if p.exchanges != nil {
		if err := p.exchanges.Exchange(&all[0], p.core.app.DeclareExchange); err != nil {
			return err
		}
	}
	failures, err := p.connection.Send(all...)
	if err != nil {
		return err
	}
	if p.exchanges != nil {
		p.again(all, failures, began)
	}
	return join(failures)
}

// again sends the messages once more whose exchange was deleted, and puts their new errors in the places of the old
// ones.
func (p appPublisher) again(all []publisher.Message, failures []error, began time.Time) {
	for i, err := range failures {
		if publisher.NoExchange(err) {
			m := all[i]
			failures[i] = p.exchanges.Resend(m, m.Exchange, err, began, func(channel *amqp091.Channel) error {
				return p.core.app.DeclareExchange(channel, m.Exchange)
			})
		}
	}
}

// marshal returns a panic of the app's marshaler as an error.
func (p appPublisher) marshal(msg *message.Message) (publishing amqp091.Publishing, err error) {
	err = panics.Error("the app's marshaler", func() (err error) {
		publishing, err = p.core.app.Marshaler.Marshal(msg)
		return err
	})
	return publishing, err
}

// Publish implements message.Publisher.
func (p appPublisher) Publish(topic string, messages ...*message.Message) error {
	began := time.Now()
	err := p.send(topic, messages...)
	if len(messages) > 0 {
		report := backend.Published{Topic: topic, Messages: len(messages), Took: time.Since(began)}
		if messages[0] != nil {
			report.Context = messages[0].Context()
		}
		reportPublished(p.core.observers, report, err)
	}
	if !errors.Is(err, publish.ErrUnroutable) {
		return err
	}
	exchange, key := p.unroutable(topic, err)
	return fmt.Errorf("%w: %s", err, p.missing(topic, exchange, key))
}

// missing states which queue is missing for the messages of a topic, and what to do.
func (p appPublisher) missing(topic, exchange, key string) string {
	what := fmt.Sprintf("no queue has the name %q", key)
	if exchange != "" {
		what = fmt.Sprintf("no queue is bound to exchange %q with the routing key %q", exchange, key)
	}
	fix := fmt.Sprintf("a subscriber of topic %q must run once first, because it declares the queue", topic)
	if p.core.verifyOnly {
		fix = "VerifyOnly is set, so a user with the permission must declare it"
	}
	return what + ": " + fix
}

// unroutable returns where the first message was sent that no queue got: with an order it is not where the topic's
// messages go.
func (p appPublisher) unroutable(topic string, err error) (exchange, key string) {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = append(all, joined.Unwrap()...)
	}
	for _, one := range all {
		var failed *failure.Error
		if errors.As(one, &failed) && errors.Is(failed, publish.ErrUnroutable) {
			return failed.Exchange, failed.RoutingKey
		}
	}
	exchange, key, _ = p.route(topic)
	return exchange, key
}

// Close implements message.Publisher. The router calls it when a handler stops, and other handlers still publish.
func (p appPublisher) Close() error { return nil }

// String is the publisher's name in Watermill's metrics.
func (p appPublisher) String() string { return "rabbitmq.Publisher" }
