package workqueue

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// protection are the arguments that topology.Protect may add. An existing queue need not have them.
var protection = []string{
	queuearg.QueueType, queuearg.DeliveryLimit, queuearg.DeadLetterExchange, queuearg.DeadLetterRoutingKey,
	queuearg.DeadLetterStrategy,
	queuearg.Overflow,
}

// maxArguments is more than RabbitMQ has for queues.
const maxArguments = 32

var errHidden = errors.New("the names are so long that the broker does not show the value that the queue has")

// argumentText is the beginning of a 406 of which the broker has cut the end off: a reason has at most 255 bytes, and
// this one has the name of the queue, and for a dead-letter routing key its name again.
var argumentText = regexp.MustCompile(`^PRECONDITION_FAILED - inequivalent arg '([^']+)' for .*\.\.\.$`)

// cutArgument returns the argument that differs where the broker's error has no values, because they are cut off.
func cutArgument(err error) (argument string, isCut bool) {
	var broker *amqp091.Error
	if !errors.As(err, &broker) || broker.Code != amqp091.PreconditionFailed {
		return "", false
	}
	if match := argumentText.FindStringSubmatch(broker.Reason); match != nil {
		return match[1], true
	}
	return "", false
}

// declare declares the queue if it does not exist, and returns the arguments that it has. AMQP 0-9-1 has no method to
// read the arguments of a queue. So declare repeats the declaration with each value that the broker's refusal names,
// until the broker accepts it. usual are arguments that the queue is likely to have.
func declare(b Broker, want topology.Queue, usual amqp091.Table) (amqp091.Table, error) {
	arguments := maps.Clone(want.Arguments)
	tried := map[string]int{}
	for range maxArguments {
		channel, err := b.Channel() // another one after each refusal
		if err != nil {
			return nil, fmt.Errorf("cannot inspect work queue %q: %w", want.Name, err)
		}
		_, err = channel.QueueDeclare(want.Name, want.Durable, false, false, false, arguments)
		if err == nil {
			return arguments, nil
		}
		differs, ok := refusal.DifferenceIn(err)
		argument, have := differs.Argument, any(nil)
		if ok {
			have = differs.Value(arguments[argument])
		} else if argument, ok = cutArgument(err); ok {
			all := guesses(argument, usual[argument])
			if tried[argument] == len(all) {
				return nil, fmt.Errorf("%w: %w", refusal.Explain("declare queue", want.Name, err), errHidden)
			}
			have = all[tried[argument]]
			tried[argument]++
		}
		if !ok || !strings.HasPrefix(argument, "x-") {
			return nil, refusal.Explain("declare queue", want.Name, err)
		}
		if arguments == nil {
			arguments = amqp091.Table{}
		}
		if have != nil {
			arguments[argument] = have
		} else {
			delete(arguments, argument)
		}
	}
	return nil, fmt.Errorf("cannot read the arguments of work queue %q: the broker refused %d declarations", want.Name,
		maxArguments)
}

// typed returns the arguments of a work queue that exists, with its type where that is quorum: one that was declared
// without a type has the default of the virtual host, and the app may leave it as it is. A classic queue that is
// deleted between both declarations would be created, as a quorum queue. A stream that has its type by that default is
// not seen, on RabbitMQ 4.0 to 4.2, where alone this is called.
func typed(b Broker, app topology.Queue, have amqp091.Table) (amqp091.Table, error) {
	_, protected := have[queuearg.DeadLetterExchange]
	if protected || have[queuearg.QueueType] != nil || !app.Durable {
		return have, nil
	}
	channel, err := b.Channel()
	if err != nil {
		return nil, fmt.Errorf("cannot look at the type of work queue %q: %w", app.Name, err)
	}
	quorum := maps.Clone(have)
	if quorum == nil {
		quorum = amqp091.Table{}
	}
	quorum[queuearg.QueueType] = string(topology.Quorum)
	_, err = channel.QueueDeclare(app.Name, app.Durable, false, false, false, quorum)
	switch {
	case refusal.IsCode(err, amqp091.PreconditionFailed):
		return have, nil
	case err != nil:
		return nil, refusal.Explain("declare queue", app.Name, err)
	}
	return quorum, nil
}

// guesses returns the values to try for an argument where the broker's refusal has no room for the one that it has.
func guesses(argument string, usual any) []any {
	all := []any{nil}
	if usual != nil {
		all = append(all, usual)
	}
	switch argument {
	case queuearg.QueueType:
		all = append(all, string(topology.Classic), string(topology.Quorum), amqp091.QueueTypeStream)
	case queuearg.DeliveryLimit:
		all = append(all, int64(queuearg.WorkDeliveryLimit), int64(-1))
	case queuearg.Overflow:
		all = append(all, queuearg.DropHead, queuearg.RejectPublish, queuearg.RejectPublish+"-dlx")
	case queuearg.DeadLetterStrategy:
		all = append(all, queuearg.AtLeastOnce, "at-most-once")
	}
	return all
}

// Arguments returns the arguments of a queue, and false if it does not exist. It declares nothing, unless the queue is
// deleted meanwhile.
func Arguments(b Broker, queue topology.Queue) (have amqp091.Table, exists bool, err error) {
	channel, err := b.Channel()
	if err != nil {
		return nil, false, fmt.Errorf("cannot look at queue %q: %w", queue.Name, err)
	}
	_, err = channel.QueueDeclarePassive(queue.Name, queue.Durable, false, false, false, nil)
	switch {
	case refusal.IsCode(err, amqp091.NotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, refusal.Explain("look at queue", queue.Name, err)
	}
	have, err = declare(b, queue, queue.Arguments)
	return have, true, err
}

// OtherPrefix returns the prefix with which an existing work queue was declared, where it is another one. The app's
// own dead-letter exchange is none.
func OtherPrefix(app topology.Queue, have amqp091.Table, prefix naming.Prefix) (other string, differs bool) {
	other, _ = have[queuearg.DeadLetterExchange].(string)
	_, own := app.Arguments[queuearg.DeadLetterExchange]
	differs = !own && other != "" && other != prefix.RetryExchange() &&
		have[queuearg.DeadLetterRoutingKey] == naming.DeadKey(app.Name)
	return other, differs
}

// OtherPrefixReason and OtherPrefixAdvice are what an operator must know of a work queue with two prefixes.
const OtherPrefixReason = "what waits on the tiers of the first one comes back, but each prefix has tiers and " +
	"orphans of its own"

func OtherPrefixAdvice(other string) string {
	return fmt.Sprintf("set Prefix to %q, or keep the new one: `wmretry status --prefix %s` shows what still waits",
		other, other)
}

// Conflicts returns the arguments of an existing work queue that differ from the app's configuration. The arguments
// that the app has not set and that topology.Protect may add can differ.
func Conflicts(app topology.Queue, have amqp091.Table) []*topology.ArgumentConflictError {
	wanted := maps.Clone(app.Arguments)
	if wanted == nil {
		wanted = amqp091.Table{}
	}
	for _, key := range protection {
		if _, set := wanted[key]; !set && have[key] != nil {
			wanted[key] = have[key]
		}
	}
	return Differences(app.Name, wanted, have)
}

// Differences returns the arguments of an object that differ from those wanted, as the broker compares them.
func Differences(name string, wanted, have amqp091.Table) (all []*topology.ArgumentConflictError) {
	keys := amqp091.Table{}
	maps.Copy(keys, wanted)
	maps.Copy(keys, have)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key == queuearg.QueueType && isClassic(wanted[key]) && isClassic(have[key]) || sameArgument(wanted[key],
			have[key]) {
			continue
		}
		all = append(all, &topology.ArgumentConflictError{Object: name, Argument: key, Want: valueText(wanted[key]),
			Have: valueText(have[key])})
	}
	return all
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
