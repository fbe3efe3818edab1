package topology

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
)

// accepted are the arguments that may be added to tiers and dead-letter queues. Each has values that the library does
// not rely on. The RabbitMQ manual defines them under "Optional Arguments", "Quorum Queues" and "Classic Queues".
type accepted map[string]struct {
	words []string  // empty: a positive integer
	only  QueueType // empty: of both types
}

var (
	deadLetterKeys = accepted{
		queuearg.QueueLeaderLocator:     {words: []string{queuearg.Balanced, queuearg.ClientLocal}},
		queuearg.QuorumInitialGroupSize: {only: Quorum},
		queuearg.QuorumTargetGroupSize:  {only: Quorum},
		queuearg.QueueVersion:           {only: Classic},
	}
	tierKeys = deadLetterKeys.and(accepted{queuearg.MaxLength: {}, queuearg.MaxLengthBytes: {}})
)

// inboxKeys are the arguments of tiers that inboxes get too. A length limit is not among them: an inbox that refuses
// messages stops the tiers of its group.
var inboxKeys = []string{queuearg.QueueLeaderLocator, queuearg.QuorumInitialGroupSize, queuearg.QuorumTargetGroupSize}

const (
	deletes      = "the broker deletes a queue that no consumer reads, with the messages in it: remove it"
	removed      = "it has had no effect since RabbitMQ 3.10: remove it"
	setForReturn = "the library sets it, so that messages come back to their work queue: remove it"
	stays        = "a dead letter stays in its queue until a reader takes it or DeadLetters drops it: remove it"
	locator      = "RabbitMQ 4.3 closes the connection of a client that sets it: set " + queuearg.QueueLeaderLocator
)

// The reasons for which the other arguments of RabbitMQ are refused, and what to do.
var (
	tierReasons = map[string]string{
		queuearg.QueueType:            "the library sets it: set QueueType",
		queuearg.MessageTTL:           "the library sets it to the delay of the tier: change the schedule",
		queuearg.DeadLetterExchange:   setForReturn,
		queuearg.DeadLetterRoutingKey: setForReturn,
		queuearg.DeadLetterStrategy:   setForReturn,
		queuearg.Overflow: "the library sets it to reject-publish, because any other value drops " +
			"messages that wait: remove it",
		queuearg.Expires:              deletes,
		queuearg.DeliveryLimit:        "it has no effect, because no consumer reads a tier: remove it",
		queuearg.SingleActiveConsumer: "it has no effect, because no consumer reads a tier: remove it",
		queuearg.MaxInMemoryLength:    removed,
		queuearg.MaxInMemoryBytes:     removed,
		queuearg.QueueMasterLocator:   locator,
	}
	deadLetterReasons = map[string]string{
		queuearg.QueueType:      "the library sets it: set QueueType",
		queuearg.MessageTTL:     "it drops dead letters: set DeadLetters.MaxAge",
		queuearg.MaxLength:      "it drops or refuses dead letters: set DeadLetters.MaxLength",
		queuearg.MaxLengthBytes: "it drops or refuses dead letters: set DeadLetters.MaxLength",
		queuearg.Overflow: "the library sets it to drop-head with DeadLetters.MaxLength: while a queue " +
			"refuses dead letters, consumers hold failed messages: remove it",
		queuearg.DeadLetterExchange:   stays,
		queuearg.DeadLetterRoutingKey: stays,
		queuearg.DeadLetterStrategy:   stays,
		queuearg.Expires:              deletes,
		queuearg.DeliveryLimit: "the library sets it so high that no dead letter is dropped because a reader " +
			"gives it back: remove it",
		queuearg.SingleActiveConsumer: "a quorum queue that has it refuses basic.get, with which the management UI " +
			"reads messages: remove it",
		queuearg.MaxInMemoryLength:  removed,
		queuearg.MaxInMemoryBytes:   removed,
		queuearg.QueueMasterLocator: locator,
	}
)

func (a accepted) and(more accepted) accepted {
	all := maps.Clone(a)
	maps.Copy(all, more)
	return all
}

// faults returns what is wrong with the arguments in a field of the configuration.
func (a accepted) faults(
	field string, arguments amqp091.Table, kind QueueType, reasons map[string]string,
) (faults []error) {
	for _, key := range slices.Sorted(maps.Keys(arguments)) {
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s[%q] is %#v: %s", field, key, arguments[key],
				fmt.Sprintf(format, args...)))
		}
		rule, ok := a[key]
		switch {
		case !ok && reasons[key] != "":
			fault("%s", reasons[key])
		case !ok:
			fault("it is not among the arguments that may be added, %s: remove it; a policy can set others",
				strings.Join(slices.Sorted(maps.Keys(a)), ", "))
		case rule.only != "" && rule.only != kind:
			fault("only queues of type %s have it, and QueueType is %s: remove it", rule.only, kind)
		default:
			if _, ok := declared(rule.words, arguments[key]); ok {
				continue
			}
			if rule.words == nil {
				fault("it must be an integer from 1 to 9223372036854775807")
			} else {
				fault("it must be one of %q", rule.words)
			}
		}
	}
	return faults
}

// declared returns a copy of valid arguments, as they are declared.
func (a accepted) declared(arguments amqp091.Table) amqp091.Table {
	if len(arguments) == 0 {
		return nil
	}
	copied := amqp091.Table{}
	for key, value := range arguments {
		copied[key], _ = declared(a[key].words, value)
	}
	return copied
}

// declared returns a value as it is declared: all integers as int64, because amqp091-go cuts an int to 32 bits. It
// returns false where the value is wrong.
func declared(words []string, value any) (any, bool) {
	if words != nil {
		word, _ := value.(string)
		return word, slices.Contains(words, word)
	}
	number := reflect.ValueOf(value)
	switch {
	case number.CanInt():
		return number.Int(), number.Int() > 0
	case number.CanUint():
		return int64(number.Uint()), number.Uint() > 0 && number.Uint() <= math.MaxInt64
	}
	return nil, false
}
