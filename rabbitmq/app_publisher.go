package rabbitmq

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
)

// appPublisher publishes the app's own messages.
type appPublisher struct {
	core      *core
	publisher observed
}

func newAppPublisher(c *core, connection *publisher.Connection) (appPublisher, error) {
	p := appPublisher{core: c}
	config := publisher.Config{Route: p.route, Marshal: c.app.Marshaler.Marshal}
	if !c.verifyOnly {
		config.DeclareExchange = c.app.DeclareExchange
	}
	own, err := publisher.NewPublisher(connection, config)
	p.publisher = observed{own, c.observers, false}
	return p, err
}

// check reports why a topic cannot be published to.
func (p appPublisher) check(topic string) error {
	_, _, err := p.route(topic)
	return err
}

func (p appPublisher) route(topic string) (exchange, routingKey string, err error) {
	if p.core.app.RoutingKey == nil {
		return "", "", errors.New("AMQP.Publish.GenerateRoutingKey is nil: it must return the routing key of a topic's messages")
	}
	exchange = p.core.app.ExchangeName(topic)
	return exchange, p.core.app.RoutingKey(topic), p.core.prefix.ValidateExchange(exchange, p.core.topology.TierGroup)
}

// Publish implements message.Publisher.
func (p appPublisher) Publish(topic string, messages ...*message.Message) error {
	err := p.publisher.Publish(topic, messages...)
	if errors.Is(err, publisher.ErrClosed) {
		return fmt.Errorf("%w: %w", err, ErrClosed)
	}
	if !errors.Is(err, publisher.ErrUnroutable) {
		return err
	}
	exchange, key, _ := p.route(topic)
	what := fmt.Sprintf("no queue has the name %q", key)
	if exchange != "" {
		what = fmt.Sprintf("no queue is bound to exchange %q with the routing key %q", exchange, key)
	}
	fix := fmt.Sprintf("a subscriber of topic %q must run once first, because it declares the queue", topic)
	if p.core.verifyOnly {
		fix = "VerifyOnly is set, so a user with the permission must declare it"
	}
	return fmt.Errorf("%w: %s: %s", err, what, fix)
}

// Close implements message.Publisher. The router calls it when a handler stops, and other handlers still publish.
func (p appPublisher) Close() error { return nil }

// String is the publisher's name in Watermill's metrics.
func (p appPublisher) String() string { return "rabbitmq.Publisher" }
