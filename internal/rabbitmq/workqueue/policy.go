package workqueue

import (
	"fmt"
	"regexp"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/argument"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// PolicyCommand returns the command that protects a queue whose arguments cannot be changed.
func PolicyCommand(vhost, queue string, prefix naming.Prefix, quorum bool) string {
	limit := ""
	if quorum {
		limit = fmt.Sprintf(`,"delivery-limit":%d`, argument.WorkDeliveryLimit)
	}
	return fmt.Sprintf(`rabbitmqctl set_policy -p '%s' --apply-to queues 'retry of %s' '^%s$' `+
		`'{"dead-letter-exchange":"%s","dead-letter-routing-key":"%s"%s}'`,
		vhost, queue, regexp.QuoteMeta(queue), prefix.RetryExchange(), naming.DeadKey(queue), limit)
}

// vhostOf returns the virtual host that a connection opens. amqp091-go prefers that of the configuration to that of the
// address.
func vhostOf(uri string, config amqp091.Config) string {
	if config.Vhost != "" {
		return config.Vhost
	}
	parsed, err := amqp091.ParseURI(uri)
	if err != nil {
		return ""
	}
	return parsed.Vhost
}
