package drift

import (
	"context"
	"maps"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
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
