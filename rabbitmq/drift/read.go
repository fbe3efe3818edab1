package drift

import (
	"context"
	"maps"
	"slices"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
)

// read returns what the management API shows of a virtual host.
func read(ctx context.Context, config Config, vhost string) (management.Inventory, error) {
	uri, _ := amqp091.ParseURI(config.URI)
	client, err := management.New(config.Management, management.Broker{
		Vhost: vhost, User: uri.Username, Password: uri.Password,
		TLS: config.connection().Client(connectionName).TLSClientConfig,
	})
	if err != nil {
		return management.Inventory{}, err
	}
	return client.Inventory(ctx)
}

func sorted[V any](names map[string]V) []string { return slices.Sorted(maps.Keys(names)) }
