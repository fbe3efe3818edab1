// Package relaytopic names the topics of package relay.
package relaytopic

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Unknown is the key of messages on a tier whose metadata name no handler.
const Unknown = "unknown"

// The names of the retries are ones that every backend takes. MaxPrefix and maxKey are bytes: a name has at most 200.
const (
	MaxPrefix = 40
	maxKey    = 150
)

// Key is the part of the names that a consumer group has on a topic, or a handler where the Pub/Sub has no groups: then
// the topic is empty, or that of a subscriber with several. What it has in common with another group or topic when the
// two are joined, is too long, or has other characters than Plain has, ends with a hash.
func Key(group, topic string) string {
	key := group
	if topic != "" {
		key += "." + topic
	}
	if (topic == "" || !strings.Contains(group, ".")) && Plain(key) && len(key) <= maxKey {
		return key
	}
	sum := fmt.Sprintf("-%x", sha256.Sum256(fmt.Appendf(nil, "%q%q", group, topic)))[:17]
	plain := strings.Map(func(r rune) rune {
		if isPlain(r) {
			return r
		}
		return '_'
	}, key)
	return plain[:min(len(plain), maxKey-len(sum))] + sum
}

// Plain reports whether a name has only the characters that every backend takes: A-Z, a-z, 0-9, dot, underscore and
// hyphen.
func Plain(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool { return !isPlain(r) })
}

func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
}

// IsKey reports whether a text from elsewhere can be a key.
func IsKey(text string) bool { return text != "" && len(text) <= maxKey && Plain(text) }

// Names have a prefix. The default is "retry".
type Names struct{ Prefix string }

// Tier returns the topic of a tier.
func (n Names) Tier(tier backoff.Tier) string { return n.join() + tier.String() }

// Return returns the topic on which those with a key receive their retries.
func (n Names) Return(key string) string { return n.returns() + key }

// Dead returns the dead-letter topic of those with a key.
func (n Names) Dead(key string) string { return n.dead() + key }

// IsReturn reports whether a topic is a return topic.
func (n Names) IsReturn(topic string) bool { return strings.HasPrefix(topic, n.returns()) }

// IsDead reports whether a topic is a dead-letter topic.
func (n Names) IsDead(topic string) bool { return strings.HasPrefix(topic, n.dead()) }

// IsOwn reports whether a topic is one of the retries.
func (n Names) IsOwn(topic string) bool { return strings.HasPrefix(topic, n.join()) }

// ReturnOf returns the return topic beside a dead-letter topic. It is empty where there is none.
func (n Names) ReturnOf(dead string) string {
	if key, found := strings.CutPrefix(dead, n.dead()); found && key != Unknown {
		return n.Return(key)
	}
	return ""
}

// Validate returns an error for a prefix that not every backend takes.
func (n Names) Validate() error {
	if len(n.Prefix) > MaxPrefix || !Plain(n.Prefix) {
		return fmt.Errorf("Prefix is %q: it must have at most %d characters, each a letter, a digit, a dot, an "+
			"underscore or a hyphen", n.Prefix, MaxPrefix)
	}
	return nil
}

func (n Names) join() string    { return cmp.Or(n.Prefix, "retry") + "." }
func (n Names) returns() string { return n.join() + "return." }
func (n Names) dead() string    { return n.join() + "dead." }
