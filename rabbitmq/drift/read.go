package drift

import (
	"context"
	"fmt"
	"maps"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// An inventory is what the management API shows of a virtual host.
type inventory struct {
	exchanges map[string]management.Exchange
	queues    map[string]management.Details
	bindings  map[management.Binding]bool
}

func read(ctx context.Context, config Config, vhost string) (*inventory, error) {
	uri, _ := amqp091.ParseURI(config.URI)
	client, err := management.New(config.Management, management.Broker{
		Vhost: vhost, User: uri.Username, Password: uri.Password,
		TLS: config.connection().Client(connectionName).TLSClientConfig,
	})
	if err != nil {
		return nil, err
	}
	var i inventory
	if i.exchanges, err = client.Exchanges(ctx); err != nil {
		return nil, err
	}
	if i.queues, _, err = client.Details(ctx); err != nil {
		return nil, err
	}
	if i.bindings, err = client.Bindings(ctx); err != nil {
		return nil, err
	}
	return &i, nil
}

func sorted[V any](names map[string]V) []string { return slices.Sorted(maps.Keys(names)) }

func exchangeExists(b workqueue.Broker, e topology.Exchange) (bool, error) {
	channel, err := b.OpenChannel() // the broker closes it with each refusal
	if err != nil {
		return false, fmt.Errorf("cannot look at exchange %q: %w", e.Name, err)
	}
	err = channel.ExchangeDeclarePassive(e.Name, e.Kind, e.Durable, false, false, false, nil)
	switch {
	case refusal.IsCode(err, amqp091.NotFound):
		return false, nil
	case err != nil:
		return false, refusal.Explain("look at exchange", e.Name, err)
	}
	return true, channel.Close()
}

// declareExchange declares an exchange that exists: the broker refuses other arguments.
func declareExchange(b workqueue.Broker, e topology.Exchange) error {
	channel, err := b.OpenChannel()
	if err != nil {
		return fmt.Errorf("cannot look at exchange %q: %w", e.Name, err)
	}
	if err := channel.ExchangeDeclare(e.Name, e.Kind, e.Durable, false, false, false, e.Arguments); err != nil {
		return refusal.Explain("declare exchange", e.Name, err)
	}
	return channel.Close()
}
