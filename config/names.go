package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	deadWord = "dead"

	// maxShortString bounds queue names, exchange names and routing keys: AMQP 0-9-1 sends them as short strings.
	maxShortString = 255
)

// names are what the topology is called under a prefix.
type names string

func (n names) retryExchange() string  { return string(n) }
func (n names) returnExchange() string { return string(n) + ".return" }
func (n names) orphans() string        { return string(n) + ".orphans" }
func (n names) tierQueue(queue string, tier backoff.Tier) string {
	return queue + "." + string(n) + "." + tier.String()
}

func deadQueue(queue string) string { return queue + "." + deadWord }

func retryKey(queue string, tier backoff.Tier) string { return tier.String() + "." + queue }
func deadKey(queue string) string                     { return deadWord + "." + queue }

// returnKey matches one queue's messages from all its tiers. A pattern for a suffix would also feed a queue named "billing"
// with what belongs to "sales.billing".
func returnKey(queue string) string { return "*." + queue }

// queueOfKey is the work queue in a routing key that retryKey or deadKey made.
func queueOfKey(key string) (string, bool) {
	_, queue, ok := strings.Cut(key, ".")
	return queue, ok && queue != ""
}

func (n names) validate() error {
	prefix := string(n)
	switch {
	case hasPatternWord(prefix):
		return fmt.Errorf("Prefix is %q: it must not hold the words * or #, which are patterns in a topic exchange's bindings", prefix)
	case strings.HasPrefix(prefix, "amq."):
		return fmt.Errorf("Prefix is %q: names that begin with amq. are the broker's own", prefix)
	case len(n.orphans()) > maxShortString:
		return fmt.Errorf("Prefix has %d bytes: it must have at most %d, so that %q fits into %d", len(prefix),
			maxShortString-len(n.orphans())+len(prefix), "<prefix>.orphans", maxShortString)
	}
	return nil
}

// validateQueue reports all that makes a queue impossible as a work queue of these tiers.
func (n names) validateQueue(queue string, tiers []backoff.Tier) error {
	if queue == "" {
		return errors.New("the work queue has no name: server-named queues cannot be retried, their name is gone with the connection")
	}
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("work queue %q: "+format, append([]any{queue}, args...)...))
	}
	if hasPatternWord(queue) {
		fault("its name must not hold the words * or #, which are patterns in a topic exchange's bindings")
	}
	if n.isOurs(queue) {
		fault("it is named like a queue of this topology (<queue>.%s, <queue>.%s.<tier>, %s), and failures of failures would never end: "+
			"to read dead letters use Builder.DeadLetterSubscriberConfig", deadWord, string(n), n.orphans())
	}
	if strings.HasPrefix(queue, "amq.") {
		fault("names that begin with amq. are the broker's own: choose another")
	}
	if queue == string(n) {
		fault("it is named like Prefix %q: choose another prefix", string(n))
	}
	for _, tier := range tiers {
		if name := n.tierQueue(queue, tier); len(name) > maxShortString {
			fault("the name of its tier queue %q has %d bytes: AMQP allows %d", name, len(name), maxShortString)
			break
		}
	}
	return errors.Join(faults...)
}

// validateExchange refuses an app's exchange that is one of ours.
func (n names) validateExchange(exchange string) error {
	switch exchange {
	case n.retryExchange(), n.returnExchange(), n.orphans():
		return fmt.Errorf("the app's exchange is named %q, like one of this topology's: choose another Prefix than %q", exchange, string(n))
	}
	return nil
}

func (n names) isOurs(queue string) bool {
	if queue == n.orphans() || strings.HasSuffix(queue, "."+deadWord) {
		return true
	}
	at := strings.LastIndex(queue, "."+string(n)+".")
	if at < 0 {
		return false
	}
	_, err := backoff.ParseTier(queue[at+len(n)+2:])
	return err == nil
}

func hasPatternWord(name string) bool {
	for word := range strings.SplitSeq(name, ".") {
		if word == "*" || word == "#" {
			return true
		}
	}
	return false
}
