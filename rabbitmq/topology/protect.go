package topology

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/argument"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// classicOnly are arguments that a quorum queue refuses.
var classicOnly = []string{argument.MaxPriority, argument.QueueMode, argument.QueueVersion, argument.QueueMasterLocator}

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
	orElse(argument.QueueType, string(kind))
	if arguments[argument.QueueType] == string(Quorum) {
		orElse(argument.DeliveryLimit, int64(argument.WorkDeliveryLimit))
	}
	if _, set := arguments[argument.DeadLetterExchange]; !set {
		arguments[argument.DeadLetterExchange] = n.RetryExchange()
		orElse(argument.DeadLetterRoutingKey, naming.DeadKey(work.Name))
		// At-least-once needs reject-publish. With a length limit of the app that would refuse the newest messages in
		// place of dropping the oldest.
		if arguments[argument.QueueType] == string(Quorum) && !hasAny(arguments, argument.Overflow, argument.MaxLength,
			argument.MaxLengthBytes) {
			orElse(argument.DeadLetterStrategy, argument.AtLeastOnce)
			arguments[argument.Overflow] = argument.RejectPublish
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
