package deadletter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/definitions"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A role is what messages do on a queue.
type role int

const (
	wait   role = iota // until their delay is over: a tier, an inbox
	handle             // until a handler takes them: a work queue, a partition
	rest               // until an operator takes them: dead letters, orphans
)

// roleOf returns the role of a queue of the library.
func roleOf(queue topology.Queue) role {
	switch {
	case queue.Arguments[queuearg.DeadLetterExchange] == nil:
		return rest
	case queue.Arguments[queuearg.MessageTTL] == nil:
		return handle
	}
	return wait
}

// narrow is what to do about a policy that no deployment can want.
const narrow = "make the pattern of the policy leave out this queue"

// policies reports what policies do to a queue. The arguments of want are those that decide together with the policies.
func (c *comparison) policies(r role, want topology.Queue, have management.Queue) {
	p := policies{comparison: c, queue: want, have: have}
	delay, _ := want.Arguments[queuearg.MessageTTL].(int64)
	for _, key := range []string{"expires", "message-ttl", "delivery-limit", "max-length", "max-length-bytes"} {
		value, set := have.Effective[key].(int64)
		switch {
		case !set, r == wait && (key == "delivery-limit" || key == "message-ttl" && value >= delay):
		case key == "expires":
			p.drift(key, "the broker deletes a queue that no consumer reads, with the messages in it")
		case r == handle:
			p.onHandled(key, value)
		case r == wait && key == "message-ttl":
			p.drift(key, fmt.Sprintf("messages come back after %v in place of %v", milliseconds(value),
				milliseconds(delay)))
		case r == wait:
			p.note(key, "a tier at its limit refuses messages, which then wait on another tier")
		case key == "delivery-limit":
			p.drift(key, "a letter is lost after so many looks at it, up to RabbitMQ 4.2")
		default:
			p.note(key, "the broker drops the oldest letters at this limit, and they are lost")
		}
	}
	if value, set := have.Effective["overflow"]; set && value != queuearg.RejectPublish &&
		want.Arguments[queuearg.DeadLetterStrategy] == queuearg.AtLeastOnce {
		p.drift("overflow", "the broker forwards messages of this queue without confirms, and can lose them")
	}
	switch through, key := "dead-letter-exchange", "dead-letter-routing-key"; r {
	case wait:
		if want.Arguments[queuearg.DeadLetterRoutingKey] == nil && have.Effective[key] != nil {
			p.drift(key, "messages leave the tier with this key, and do not come back to their work queue")
		}
	case handle:
		if have.Effective["delayed-retry-type"] != nil {
			p.note("delayed-retry-type", "what a handler gives back waits in the work queue, and is lost with it")
		}
	case rest:
		if have.Effective[through] != nil {
			p.note(through, "letters that reach a limit or an age go to this exchange")
		}
	}
}

// deadLetterPolicy reports a policy that protects a work queue, and was written for another one.
func (c *comparison) deadLetterPolicy(w Wanted, have management.Queue) {
	const key = "dead-letter-routing-key"
	need := naming.DeadKey(w.Queue.Name)
	if have.Arguments[queuearg.DeadLetterExchange] == nil && have.Effective[key] != need &&
		have.Effective["dead-letter-exchange"] == w.prefix().RetryExchange() {
		policies{c, topology.Queue{Name: w.Queue.Name}, have}.drift(key, fmt.Sprintf("a message that the broker "+
			"itself gives up does not get to its dead letters: these need the key %q", need))
	}
}

// policies are those of one queue.
type policies struct {
	*comparison
	queue topology.Queue
	have  management.Queue
}

func (p policies) drift(key, reason string) { p.found(Policy, key, reason, narrow) }
func (p policies) note(key, reason string)  { p.found(Note, key, reason, "") }

func (p policies) found(kind Kind, key, reason, advice string) {
	value, set := p.have.Effective[key]
	text := fmt.Sprint(value)
	if !set {
		text = "none"
	}
	p.add(Difference{Kind: kind, Object: "queue", Name: p.queue.Name, Argument: key,
		Have: text + " by " + policyOf(p.have), Reason: reason, Advice: advice})
}

// onHandled reports nothing where the queue has a lower limit by its arguments. A deployment can want a dead letter; it
// cannot want a message that is dropped, or a gap in an order.
func (p policies) onHandled(key string, value int64) {
	if own, set := whole(p.queue.Arguments["x-"+key]); set && own <= value ||
		key == "delivery-limit" && !set && value >= queuearg.WorkDeliveryLimit {
		return
	}
	which := map[string]string{
		"message-ttl":      "a message that no handler has taken after this time (in ms)",
		"delivery-limit":   "a message that was delivered so often without an ack",
		"max-length":       "the oldest message of a queue that is longer",
		"max-length-bytes": "the oldest message of a queue that has more bytes",
	}[key]
	switch overflow := p.setting("overflow"); {
	case strings.HasPrefix(key, "max-length") && strings.HasPrefix(fmt.Sprint(overflow), queuearg.RejectPublish):
		p.note(key, "a queue at its limit refuses messages, and retries that come back are late by 3 to 6 minutes")
	case p.setting("dead-letter-exchange") == nil:
		p.drift(key, which+" is dropped")
	case p.queue.Arguments[queuearg.SingleActiveConsumer] == true:
		p.drift(key, which+" becomes a dead letter, and a gap in the order of its key")
	case key == "message-ttl":
		p.note(key, which+` becomes a dead letter, as "expired"`)
	default:
		p.note(key, which+" becomes a dead letter")
	}
}

// setting is an argument of the queue, or else what a policy sets. The broker prefers the policy for overflow alone.
func (p policies) setting(name string) any {
	argument, policy := p.queue.Arguments["x-"+name], p.have.Effective[name]
	if argument == nil || name == "overflow" && policy != nil {
		return policy
	}
	return argument
}

// whole reads an argument that is a whole number of any type.
func whole(argument any) (n int64, is bool) {
	_, err := fmt.Sscan(fmt.Sprint(argument), &n)
	return n, err == nil
}

const (
	deleteQueue = "delete the queue once it is empty and declare it again, configure the value that it has, or use " +
		"another prefix"
	deleteExchange = "delete the exchange while no app uses it and declare it again, or use another prefix"
)

// settable are the arguments of a queue without one that a policy can set.
var settable = []string{queuearg.MaxLength, queuearg.MaxLengthBytes, queuearg.MessageTTL, queuearg.DeadLetterExchange,
	queuearg.DeadLetterRoutingKey, queuearg.DeliveryLimit}

// advice returns what to do about an argument of a queue of the library that differs. have are those on the broker.
func (c *comparison) advice(queue topology.Queue, have map[string]any, d *topology.ArgumentConflictError) string {
	switch {
	case d.Have == "none" && slices.Contains(settable, d.Argument):
		return "set it by a policy, and configure the app without it: " +
			workqueue.SetPolicy(c.vhost, "arguments of "+queue.Name, queue.Name, policyFor(queue, have))
	case d.Argument == queuearg.Overflow && d.Want == queuearg.DropHead && d.Have == "none":
		return "it is the default: the policy for x-max-length is enough"
	case roleOf(queue) == wait && queue.Arguments[queuearg.DeadLetterRoutingKey] == nil: // a tier, and no inbox
		return "bring home what waits on the tier, delete its queue once it is empty and declare it again, " +
			"configure the value that it has, or use another prefix"
	}
	return deleteQueue
}

// policyFor is the definition of one policy with all that the queue lacks: RabbitMQ applies one policy to a queue.
func policyFor(queue topology.Queue, have map[string]any) map[string]any {
	definition := map[string]any{}
	for _, argument := range settable {
		if value, wanted := queue.Arguments[argument]; wanted && have[argument] == nil {
			definition[strings.TrimPrefix(argument, "x-")] = value
		}
	}
	return definition
}

func policyOf(q management.Queue) string {
	switch {
	case q.Policy != "" && q.Operator != "":
		return fmt.Sprintf("the policy %q or %q", q.Policy, q.Operator)
	case q.Policy != "" || q.Operator != "":
		return fmt.Sprintf("the policy %q", cmp.Or(q.Policy, q.Operator))
	}
	return "a policy"
}

func milliseconds(n int64) backoff.Tier { return backoff.Tier(time.Duration(n) * time.Millisecond) }

// retired notes the tiers of the work queues and groups that no schedule has.
func (c *comparison) retired(wanted []Wanted, all definitions.Definitions) {
	for _, name := range slices.Sorted(maps.Keys(c.there.Queues)) {
		isTier := slices.ContainsFunc(wanted, func(w Wanted) bool {
			of, _, isTier := w.prefix().TierOf(name)
			return isTier && of == w.group()
		})
		if isTier && !slices.ContainsFunc(all.Queues, func(q topology.Queue) bool { return q.Name == name }) {
			c.noteQueue(name, "no schedule has this tier any more",
				"its messages come back by themselves; when it is empty, prune it")
		}
	}
}

// otherLayout notes that a work queue also has the tiers of another prefix or group.
func (c *comparison) otherLayout(w Wanted, have amqp091.Table) {
	if other, differs := workqueue.OtherPrefix(w.Queue, have, w.prefix()); differs {
		c.add(Difference{
			Kind: Note, Object: "queue", Name: w.Queue.Name, Argument: queuearg.DeadLetterExchange, Have: other,
			Want:   w.prefix().RetryExchange(),
			Reason: workqueue.OtherPrefixReason, Advice: workqueue.OtherPrefixAdvice(other),
		})
	}
	work, group := w.Queue.Name, w.group()
	others := map[string]bool{}
	for b := range c.there.Bindings {
		of, isGroup := w.prefix().GroupOfReturn(b.Exchange)
		if isGroup && of != group && b.Queue == work && b.Key == naming.MemberKey(work) {
			others["is in the tier group "+of] = true
		}
	}
	for name := range c.there.Queues {
		if of, _, isTier := w.prefix().TierOf(name); isTier && of == work && work != group {
			others["has tiers of its own"] = true
		}
	}
	for _, other := range slices.Sorted(maps.Keys(others)) {
		c.noteQueue(work, "it also "+other, "use the earlier TierGroup, or remove the earlier tiers with wmretry tiers "+
			"prune when no instance has them any more")
	}
}
