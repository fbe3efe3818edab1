package deadletter

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/internal/shell"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

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
		return fmt.Sprintf("set it by a policy, and configure the app without it: rabbitmqctl set_policy -p %s "+
			"--apply-to queues %s %s %s", shell.Quote(c.vhost), shell.Quote("arguments of "+queue.Name),
			shell.Quote("^"+regexp.QuoteMeta(queue.Name)+"$"), shell.Quote(policyFor(queue, have)))
	case d.Argument == queuearg.Overflow && d.Want == queuearg.DropHead && d.Have == "none":
		return "it is the default: the policy for x-max-length is enough"
	case isTier(queue):
		return "bring home what waits on the tier, delete its queue once it is empty and declare it again, " +
			"configure the value that it has, or use another prefix"
	}
	return deleteQueue
}

// policyFor is the definition of one policy with all that the queue lacks: RabbitMQ applies one policy to a queue.
func policyFor(queue topology.Queue, have map[string]any) string {
	definition := map[string]any{}
	for _, argument := range settable {
		if value, wanted := queue.Arguments[argument]; wanted && have[argument] == nil {
			definition[strings.TrimPrefix(argument, "x-")] = value
		}
	}
	text, _ := json.Marshal(definition) // of numbers and texts
	return string(text)
}

func isTier(queue topology.Queue) bool {
	word := queue.Name[strings.LastIndexByte(queue.Name, '.')+1:]
	_, err := backoff.ParseTier(word)
	return err == nil && queue.Arguments[queuearg.DeadLetterExchange] != nil
}

func policyOf(q management.Queue) string {
	var names []string
	for _, name := range []string{q.Policy, q.Operator} {
		if name != "" {
			names = append(names, strconv.Quote(name))
		}
	}
	if len(names) == 0 {
		return "a policy"
	}
	return "the policy " + strings.Join(names, " or ")
}

func milliseconds(n int64) backoff.Tier { return backoff.Tier(time.Duration(n) * time.Millisecond) }

// retired notes the tiers of the work queues and groups that no schedule has.
func (c *comparison) retired(wanted []Wanted, all topology.Definitions) {
	has, groups := map[string]bool{}, map[string]Wanted{}
	for _, q := range all.Queues {
		has[q.Name] = true
	}
	for _, w := range wanted {
		groups[topology.New(w.Topology, w.Queue).Group()] = w
	}
	for _, name := range slices.Sorted(maps.Keys(c.there.Queues)) {
		for group, w := range groups {
			of, _, isTier := w.prefix().TierOf(name)
			if isTier && of == group && !has[name] {
				c.add(Difference{
					Kind: Note, Object: "queue", Name: name, Reason: "no schedule has this tier any more",
					Advice: "its messages come back by themselves; when it is empty, prune it",
				})
			}
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
	work, prefix := w.Queue.Name, w.prefix()
	group := topology.New(w.Topology, w.Queue).Group()
	others := map[string]bool{}
	for b := range c.there.Bindings {
		if of, isGroup := prefix.GroupOfReturn(b.Exchange); isGroup && b.Queue == work &&
			b.Key == naming.MemberKey(work) {
			others["is in the tier group "+of] = of != group
		}
	}
	for name := range c.there.Queues {
		if of, _, isTier := prefix.TierOf(name); isTier && of == work {
			others["has tiers of its own"] = work != group
		}
	}
	for _, other := range slices.Sorted(maps.Keys(others)) {
		if others[other] {
			c.add(Difference{
				Kind: Note, Object: "queue", Name: work, Reason: "it also " + other,
				Advice: "use the earlier TierGroup, or remove the earlier tiers with wmretry tiers prune when " +
					"no instance has them any more",
			})
		}
	}
}
