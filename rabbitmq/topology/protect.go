package topology

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
)

// classicOnly are arguments that a quorum queue refuses.
var classicOnly = []string{queuearg.MaxPriority, queuearg.QueueMode, queuearg.QueueVersion, queuearg.QueueMasterLocator}

// protect returns the work queue as it is declared if it does not exist. It changes no argument that the app has set.
func protect(work Queue, n naming.Prefix) Queue {
	arguments := work.Arguments
	if arguments == nil {
		arguments = amqp091.Table{}
	}
	orElse := func(key string, value any) {
		if _, set := arguments[key]; !set {
			arguments[key] = value
		}
	}
	kind := Quorum
	if hasAny(arguments, classicOnly...) {
		kind = Classic
	}
	orElse(queuearg.QueueType, string(kind))
	if arguments[queuearg.QueueType] == string(Quorum) {
		orElse(queuearg.DeliveryLimit, int64(queuearg.WorkDeliveryLimit))
	}
	if _, set := arguments[queuearg.DeadLetterExchange]; !set {
		arguments[queuearg.DeadLetterExchange] = n.RetryExchange()
		orElse(queuearg.DeadLetterRoutingKey, naming.DeadKey(work.Name))
		// At-least-once needs reject-publish. With a length limit of the app that would refuse the newest messages in
		// place of dropping the oldest.
		if arguments[queuearg.QueueType] == string(Quorum) && !hasAny(arguments, queuearg.Overflow, queuearg.MaxLength,
			queuearg.MaxLengthBytes) {
			orElse(queuearg.DeadLetterStrategy, queuearg.AtLeastOnce)
			arguments[queuearg.Overflow] = queuearg.RejectPublish
		}
	}
	work.Arguments = arguments
	return work
}

func hasAny(arguments amqp091.Table, keys ...string) bool {
	for _, key := range keys {
		if _, set := arguments[key]; set {
			return true
		}
	}
	return false
}
