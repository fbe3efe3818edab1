// Package naming has the names of the retry topology: exchanges, queues and routing keys.
package naming

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	deadWord      = "dead"
	inboxWord     = "inbox"
	returnSuffix  = ".return"
	anySuffix     = returnSuffix + ".any"
	orphansSuffix = ".orphans"
	orderSuffix   = ".order"

	// maxShortString bounds queue names, exchange names and routing keys: AMQP 0-9-1 sends them as short strings.
	maxShortString = 255
)

// Default is the prefix of a configuration without one.
const Default Prefix = "retry"

// Prefix is the first part of the names of exchanges, and a part of the names of tier queues.
type Prefix string

// Of returns the prefix of a configuration.
func Of(prefix string) Prefix { return cmp.Or(Prefix(prefix), Default) }

func (p Prefix) RetryExchange() string  { return string(p) }
func (p Prefix) ReturnExchange() string { return string(p) + returnSuffix }

// AnyReturnExchange gets what the return exchange has no key for, such as messages of a tier that is no longer in a
// schedule.
func (p Prefix) AnyReturnExchange() string { return string(p) + anySuffix }
func (p Prefix) Orphans() string           { return string(p) + orphansSuffix }

// OrderControl gets the commands for the processes with handlers that keep an order.
func (p Prefix) OrderControl() string { return string(p) + orderSuffix }

// TierQueue returns the queue of a tier. The group is that of the work queue, or the work queue itself.
func (p Prefix) TierQueue(group string, tier backoff.Tier) string {
	return p.GroupExchange(group) + "." + tier.String()
}

// TierOf returns the group and the tier of a queue that TierQueue named.
func (p Prefix) TierOf(queue string) (group string, tier backoff.Tier, isTier bool) {
	group, word, found := p.cut(queue)
	tier, err := backoff.ParseTier(word)
	return group, tier, found && err == nil && group != ""
}

// GroupExchange gets the copies of the work queues of a group, and GroupReturnExchange what expires on the group's
// tiers.
func (p Prefix) GroupExchange(group string) string { return group + "." + string(p) }
func (p Prefix) GroupReturnExchange(group string) string {
	return p.GroupExchange(group) + returnSuffix
}

// TierKeys matches the messages of all work queues of a group on one tier.
func TierKeys(tier backoff.Tier) string { return tier.String() + ".#" }

// InboxQueue returns the queue between the tiers of a group and a work queue, and InboxKey the routing key with which
// messages leave it.
func (p Prefix) InboxQueue(queue string) string { return p.GroupExchange(queue) + "." + inboxWord }
func InboxKey(queue string) string              { return inboxWord + "." + queue }

// MemberKey binds a work queue of a group to the group's return exchange. No message has this routing key.
func MemberKey(queue string) string { return "member." + queue }

// GroupOfReturn returns the group of a return exchange that GroupReturnExchange named.
func (p Prefix) GroupOfReturn(exchange string) (group string, isGroup bool) {
	group, isGroup = strings.CutSuffix(exchange, p.GroupReturnExchange(""))
	return group, isGroup && group != ""
}

// IsReturn reports whether messages come back to work queues through an exchange.
func (p Prefix) IsReturn(exchange string) bool {
	first, isReturn := strings.CutSuffix(exchange, returnSuffix)
	group, isOwn := strings.CutSuffix(first, string(p))
	return isReturn && isOwn && (group == "" || strings.HasSuffix(group, "."))
}

// IsBack reports whether a delivery came back from a tier, whatever the prefix: through which exchange, and with which
// routing key.
func IsBack(exchange, key string) bool {
	word, _, found := strings.Cut(key, ".")
	if !found || !strings.HasSuffix(exchange, returnSuffix) && !strings.HasSuffix(exchange, anySuffix) &&
		!strings.HasSuffix(exchange, orphansSuffix) {
		return false
	}
	_, err := backoff.ParseTier(word)
	return err == nil || word == inboxWord
}

// DeadQueue returns the dead-letter queue of a work queue.
func DeadQueue(queue string) string { return queue + "." + deadWord }

// WorkQueueOf returns the work queue of a dead-letter queue.
func WorkQueueOf(dead string) string { return strings.TrimSuffix(dead, "."+deadWord) }

// RetryKey and DeadKey return the routing keys of copies. A copy comes back from its tier with its RetryKey.
func RetryKey(queue string, tier backoff.Tier) string { return tier.String() + "." + queue }
func DeadKey(queue string) string                     { return deadWord + "." + queue }

// IsDeadKey reports whether a routing key is that of a dead letter.
func IsDeadKey(key string) bool { return strings.HasPrefix(key, deadWord+".") }

// OrderExchange gets the messages of a work queue whose order is kept, and PartitionQueue has those of one partition.
// The number of the partition is their routing key.
func OrderExchange(queue string) string { return queue + orderSuffix }
func PartitionQueue(queue string, partition int) string {
	return OrderExchange(queue) + "." + strconv.Itoa(partition)
}

// QueueOfOrder returns the work queue of an OrderExchange.
func QueueOfOrder(exchange string) (queue string, isOrder bool) {
	return strings.CutSuffix(exchange, orderSuffix)
}

// MembersQueue has a consumer of each process that consumes the partitions of a work queue, and no messages: the broker
// counts only one consumer of a queue with a single active one.
func MembersQueue(queue string) string { return OrderExchange(queue) + ".members" }

// IsPartition reports whether a queue has the name of a partition, or of a MembersQueue.
func IsPartition(queue string) bool {
	of, last, found := strings.Cut(queue, orderSuffix+".")
	_, err := strconv.Atoi(last)
	return found && of != "" && (err == nil || last == "members")
}

// PartitionOf returns the partition of a key.
func PartitionOf(key string, partitions int) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key))
	return int(hash.Sum32() % uint32(partitions))
}

// AnyReturnKey matches the messages of one work queue from all its tiers. The pattern has exactly one word before the
// name: with # in place of * the queue "billing" would also get the messages of "sales.billing".
func AnyReturnKey(queue string) string { return "*." + queue }

// QueueOfKey returns the work queue of a routing key that RetryKey or DeadKey made.
func QueueOfKey(key string) (string, bool) {
	_, queue, ok := strings.Cut(key, ".")
	return queue, ok && queue != ""
}

func (p Prefix) Validate() error {
	prefix := string(p)
	longest := maxShortString - len(p.AnyReturnExchange()) + len(prefix)
	switch {
	case len(prefix) > longest || hasOther(prefix):
		return fmt.Errorf("Prefix is %q, of %d bytes: it must have at most %d, so that %q fits into %d, and only %s",
			short(prefix), len(prefix),
			longest, "<prefix>.return.any", maxShortString, allowed)
	case strings.HasPrefix(prefix, "amq."):
		return fmt.Errorf(`Prefix is %q: names that begin with "amq." are reserved for the broker`, prefix)
	}
	return nil
}

// ValidateQueue reports everything that makes a queue impossible as a work queue with these tiers. The group is the
// queue itself where its tiers are its own.
func (p Prefix) ValidateQueue(queue, group string, tiers []backoff.Tier) error {
	if queue == "" {
		return errors.New("the work queue has no name: a queue that the broker names cannot have retries, because " +
			"its name is lost with the connection")
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("work queue %q: "+format, append([]any{queue}, args...)...))
	}
	if hasPatternWord(queue) {
		fault("its name must not contain the words * or #, which are patterns in the bindings of a topic exchange")
	}
	if p.isOwn(queue) {
		fault("it has the name of a queue of the retry topology (<queue>.%s, <queue>.%s.<tier>, <queue>.%s.%s, %s), "+
			"so its failures would fail again without end: "+
			"to read dead letters, subscribe to the work queue's own topic with "+
			"DeadLetterSubscriberConfig", deadWord, string(p), string(p), inboxWord, p.Orphans())
	}
	if strings.HasPrefix(queue, "amq.") {
		fault("names that begin with \"amq.\" are reserved for the broker: choose another")
	}
	if queue == string(p) {
		fault("it has the name of the exchange of Prefix %q: choose another prefix", string(p))
	}
	what, of := []string{"the name of its inbox", "the name of the return exchange of its " +
		"group"}, []string{p.InboxQueue(queue), p.GroupReturnExchange(group)}
	if group == queue {
		what, of = nil, nil
	}
	for _, tier := range tiers {
		what, of = append(what, "the name of its tier queue", "its routing key"), append(of, p.TierQueue(group, tier),
			RetryKey(queue, tier))
	}
	for i, name := range of {
		if len(name) > maxShortString {
			fault("%s, %q, has %d bytes: AMQP allows %d", what[i], name, len(name), maxShortString)
			break
		}
	}
	return errors.Join(faults...)
}

// ValidateGroup reports what makes a name impossible as that of a group.
func (p Prefix) ValidateGroup(group string) error {
	longest := maxShortString - len(p.GroupReturnExchange(""))
	switch {
	case len(group) > longest || hasOther(group):
		return fmt.Errorf("TierGroup is %q, of %d bytes: it must have at most %d, so that %q fits into %d, and only %s",
			short(group), len(group),
			longest, "<group>."+string(p)+returnSuffix, maxShortString, allowed)
	case strings.HasPrefix(group, "amq."):
		return fmt.Errorf(`TierGroup is %q: names that begin with "amq." are reserved for the broker`, group)
	case p.IsReturn(p.GroupExchange(group)) || p.isOwn(group):
		return fmt.Errorf("TierGroup is %q: it has the name of a part of the retry topology", group)
	}
	return nil
}

// ValidateDeadQueue reports what makes a name impossible as that of a dead-letter queue. It needs no prefix.
func ValidateDeadQueue(dead string) error {
	queue := WorkQueueOf(dead)
	switch {
	case queue == "":
		return errors.New("the work queue has no name, so it has no dead-letter queue: set a Queue.GenerateName that " +
			"returns the queue's name")
	case strings.HasSuffix(queue, "."+deadWord):
		return fmt.Errorf("work queue %q has the name of a dead-letter queue: subscribe to the topic of work queue %q",
			queue, WorkQueueOf(queue))
	case len(dead) > maxShortString:
		return fmt.Errorf("the name of the dead-letter queue %q has %d bytes: AMQP allows %d", dead, len(dead),
			maxShortString)
	}
	return nil
}

// ValidateExchange refuses an exchange of the app with the name of an exchange of the retry topology.
func (p Prefix) ValidateExchange(exchange, group string) error {
	switch {
	case exchange == p.RetryExchange(), exchange == p.GroupExchange(group), exchange == p.AnyReturnExchange(),
		exchange == p.Orphans(), exchange == p.OrderControl(), p.IsReturn(exchange):
		return fmt.Errorf("the app's exchange %q has the name of an exchange of the retry topology: choose another "+
			"Prefix than %q", exchange, string(p))
	}
	return nil
}

func (p Prefix) isOwn(queue string) bool {
	if queue == p.Orphans() || strings.HasSuffix(queue, "."+deadWord) {
		return true
	}
	_, word, found := p.cut(queue)
	_, err := backoff.ParseTier(word)
	return found && (err == nil || word == inboxWord)
}

// cut returns the group and the last word of a name with the prefix between them.
func (p Prefix) cut(queue string) (group, word string, found bool) {
	at := strings.LastIndex(queue, "."+string(p)+".")
	if at < 0 {
		return "", "", false
	}
	return queue[:at], queue[at+len(p)+2:], true
}

// allowed is what the names that a configuration adds may have: the characters of an exchange's name in the
// specification of AMQP. The pattern words of a topic exchange have others.
const allowed = "the characters A-Z, a-z, 0-9, -, _, . and :"

func hasOther(name string) bool {
	return strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	})
}

// short returns the beginning of a name that may be too long.
func short(name string) string { return name[:min(len(name), maxShortString)] }

func hasPatternWord(name string) bool {
	for word := range strings.SplitSeq(name, ".") {
		if word == "*" || word == "#" {
			return true
		}
	}
	return false
}
