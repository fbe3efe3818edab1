package topology

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

const (
	argType       = amqp091.QueueTypeArg
	argLimit      = "x-delivery-limit"
	argDLX        = "x-dead-letter-exchange"
	argDLK        = "x-dead-letter-routing-key"
	argDLStrategy = "x-dead-letter-strategy"
	argOverflow   = amqp091.QueueOverflowArg
)

// classicOnly are arguments that a quorum queue refuses.
var classicOnly = []string{"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"}

// protect is the work queue as it is declared where it does not exist. What the app says holds.
func protect(work Queue, n naming.Prefix) Queue {
	arguments := work.Arguments
	if arguments == nil {
		arguments = amqp091.Table{}
	}
	orElse := func(key string, value any) {
		if _, said := arguments[key]; !said {
			arguments[key] = value
		}
	}
	kind := Quorum
	if hasAny(arguments, classicOnly...) {
		kind = Classic
	}
	orElse(argType, string(kind))
	if arguments[argType] == string(Quorum) {
		orElse(argLimit, int64(DeliveryLimit))
	}
	if _, said := arguments[argDLX]; !said {
		arguments[argDLX] = n.RetryExchange()
		orElse(argDLK, naming.DeadKey(work.Name))
		// At least once needs reject-publish, which would turn a bound of the app's around: the newest would be refused.
		if arguments[argType] == string(Quorum) && !hasAny(arguments, argOverflow, amqp091.QueueMaxLenArg, amqp091.QueueMaxLenBytesArg) {
			orElse(argDLStrategy, "at-least-once")
			arguments[argOverflow] = amqp091.QueueOverflowRejectPublish
		}
	}
	work.Arguments = arguments
	return work
}

func hasAny(arguments amqp091.Table, keys ...string) bool {
	for _, key := range keys {
		if _, said := arguments[key]; said {
			return true
		}
	}
	return false
}
