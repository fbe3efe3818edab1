// Package naming says what the retry topology is called: its exchanges and queues under a prefix, and its routing keys.
package naming

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

// Default is the prefix where none is said.
const Default Prefix = "retry"

// Prefix begins the names of the exchanges, and is in those of the tier queues.
type Prefix string

func (p Prefix) RetryExchange() string  { return string(p) }
func (p Prefix) ReturnExchange() string { return string(p) + ".return" }
func (p Prefix) Orphans() string        { return string(p) + ".orphans" }
func (p Prefix) TierQueue(queue string, tier backoff.Tier) string {
	return queue + "." + string(p) + "." + tier.String()
}

func DeadQueue(queue string) string { return queue + "." + deadWord }

// WorkQueueOf is the work queue whose dead-letter queue this is.
func WorkQueueOf(dead string) string { return strings.TrimSuffix(dead, "."+deadWord) }

func RetryKey(queue string, tier backoff.Tier) string { return tier.String() + "." + queue }
func DeadKey(queue string) string                     { return deadWord + "." + queue }

// ReturnKey matches one queue's messages from all its tiers. A pattern for a suffix would also feed a queue named "billing"
// with what belongs to "sales.billing".
func ReturnKey(queue string) string { return "*." + queue }

// QueueOfKey is the work queue in a routing key that RetryKey or DeadKey made.
func QueueOfKey(key string) (string, bool) {
	_, queue, ok := strings.Cut(key, ".")
	return queue, ok && queue != ""
}

func (p Prefix) Validate() error {
	prefix := string(p)
	switch {
	case hasPatternWord(prefix):
		return fmt.Errorf("Prefix is %q: it must not hold the words * or #, which are patterns in a topic exchange's bindings", prefix)
	case strings.HasPrefix(prefix, "amq."):
		return fmt.Errorf("Prefix is %q: names that begin with amq. are the broker's own", prefix)
	case len(p.Orphans()) > maxShortString:
		return fmt.Errorf("Prefix has %d bytes: it must have at most %d, so that %q fits into %d", len(prefix),
			maxShortString-len(p.Orphans())+len(prefix), "<prefix>.orphans", maxShortString)
	}
	return nil
}

// ValidateQueue reports all that makes a queue impossible as a work queue of these tiers.
func (p Prefix) ValidateQueue(queue string, tiers []backoff.Tier) error {
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
	if p.isOurs(queue) {
		fault("it is named like a queue of this topology (<queue>.%s, <queue>.%s.<tier>, %s), and failures of failures would never end: "+
			"to read dead letters, subscribe to the work queue's own topic with Builder.DeadLetterSubscriberConfig", deadWord, string(p), p.Orphans())
	}
	if strings.HasPrefix(queue, "amq.") {
		fault("names that begin with amq. are the broker's own: choose another")
	}
	if queue == string(p) {
		fault("it is named like Prefix %q: choose another prefix", string(p))
	}
	for _, tier := range tiers {
		if name := p.TierQueue(queue, tier); len(name) > maxShortString {
			fault("the name of its tier queue %q has %d bytes: AMQP allows %d", name, len(name), maxShortString)
			break
		}
	}
	return errors.Join(faults...)
}

// ValidateExchange refuses an app's exchange that is one of ours.
func (p Prefix) ValidateExchange(exchange string) error {
	switch exchange {
	case p.RetryExchange(), p.ReturnExchange(), p.Orphans():
		return fmt.Errorf("the app's exchange is named %q, like one of this topology's: choose another Prefix than %q", exchange, string(p))
	}
	return nil
}

func (p Prefix) isOurs(queue string) bool {
	if queue == p.Orphans() || strings.HasSuffix(queue, "."+deadWord) {
		return true
	}
	at := strings.LastIndex(queue, "."+string(p)+".")
	if at < 0 {
		return false
	}
	_, err := backoff.ParseTier(queue[at+len(p)+2:])
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
