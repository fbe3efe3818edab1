package workqueue

import (
	"fmt"
	"regexp"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
)

// PolicyCommand returns the command that protects a queue whose arguments cannot be changed.
func PolicyCommand(vhost, queue string, prefix naming.Prefix, quorum bool) string {
	limit := ""
	if quorum {
		limit = fmt.Sprintf(`,"delivery-limit":%d`, queuearg.WorkDeliveryLimit)
	}
	return fmt.Sprintf(`rabbitmqctl set_policy -p '%s' --apply-to queues 'retry of %s' '^%s$' `+
		`'{"dead-letter-exchange":"%s","dead-letter-routing-key":"%s"%s}'`,
		vhost, queue, regexp.QuoteMeta(queue), prefix.RetryExchange(), naming.DeadKey(queue), limit)
}
