package workqueue

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/argument"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// protection are the arguments that topology.Protect may add. An existing queue need not have them.
var protection = []string{
	argument.QueueType, argument.DeliveryLimit, argument.DeadLetterExchange, argument.DeadLetterRoutingKey, argument.DeadLetterStrategy,
	argument.Overflow,
}

// maxArguments is more than RabbitMQ has for queues.
const maxArguments = 32

// declare declares the queue if it does not exist, and returns the arguments that it has. AMQP 0-9-1 has no method to read the
// arguments of a queue. So declare repeats the declaration with each value that the broker's refusal names, until the broker
// accepts it.
func declare(b Broker, want topology.Queue) (amqp091.Table, error) {
	arguments := maps.Clone(want.Arguments)
	for range maxArguments {
		channel, err := b.Channel() // the broker closes it with each refusal
		if err != nil {
			return nil, fmt.Errorf("cannot inspect work queue %q: %w", want.Name, err)
		}
		_, err = channel.QueueDeclare(want.Name, want.Durable, false, false, false, arguments)
		if err == nil {
			return arguments, channel.Close()
		}
		differs, ok := refusal.DifferenceIn(err)
		if !ok || !strings.HasPrefix(differs.Argument, "x-") {
			return nil, refusal.Explain("declare queue", want.Name, err)
		}
		if arguments == nil {
			arguments = amqp091.Table{}
		}
		if have := differs.Value(arguments[differs.Argument]); have != nil {
			arguments[differs.Argument] = have
		} else {
			delete(arguments, differs.Argument)
		}
	}
	return nil, fmt.Errorf("cannot read the arguments of work queue %q: the broker refused %d declarations", want.Name, maxArguments)
}

// conflict returns an *topology.ArgumentConflictError if the existing queue has another argument than the app's configuration.
// The arguments that the app has not set and that topology.Protect may add can differ.
func conflict(app topology.Queue, have amqp091.Table) error {
	all := amqp091.Table{}
	maps.Copy(all, app.Arguments)
	maps.Copy(all, have)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		want, set := app.Arguments[key]
		if !set && slices.Contains(protection, key) {
			continue
		}
		if key == argument.QueueType && isClassic(want) && isClassic(have[key]) {
			continue
		}
		if !sameArgument(want, have[key]) {
			return &topology.ArgumentConflictError{Object: app.Name, Argument: key, Want: valueText(want), Have: valueText(have[key])}
		}
	}
	return nil
}

func isClassic(kind any) bool { return kind == nil || kind == string(topology.Classic) }

// sameArgument compares as the broker does: all integer types are equal.
func sameArgument(a, b any) bool {
	return reflect.DeepEqual(a, b) || a != nil && b != nil && fmt.Sprint(a) == fmt.Sprint(b)
}

func valueText(value any) string {
	if value == nil {
		return "none"
	}
	return fmt.Sprint(value)
}
