package deadletter

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// A role is what messages do on a queue.
type role int

const (
	wait   role = iota // messages wait until their delay is over: a tier, an inbox
	handle             // a handler takes them: a work queue, a partition
	rest               // an operator takes them: dead letters, orphans
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

// setting is that of the queue as it is wanted.
func (p policies) setting(name string) any {
	return management.Queue{Arguments: management.Arguments(p.queue.Arguments), Effective: p.have.Effective}.Setting(name)
}

// whole reads an argument that is a whole number of any type.
func whole(argument any) (n int64, is bool) {
	_, err := fmt.Sscan(fmt.Sprint(argument), &n)
	return n, err == nil
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
