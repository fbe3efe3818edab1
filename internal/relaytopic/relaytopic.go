// Package relaytopic names the topics of package relay.
package relaytopic

import (
	"cmp"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Unknown is the handler in the dead-letter topic of messages on a tier whose metadata name no handler.
const Unknown = "unknown"

// Names are those of relay.Config. An empty field has the default.
type Names struct{ Prefix, Separator string }

// Tier returns the topic of a tier.
func (n Names) Tier(tier backoff.Tier) string { return n.join() + tier.String() }

// Return returns the topic on which a handler receives its retries.
func (n Names) Return(handler string) string {
	return n.join() + "return" + n.separator() + handler
}

// Dead returns the dead-letter topic of a handler.
func (n Names) Dead(handler string) string { return n.join() + "dead" + n.separator() + handler }

// Handler returns the handler of one topic of a subscriber, which has several.
func (n Names) Handler(subscriber, topic string) string { return subscriber + n.separator() + topic }

func (n Names) separator() string { return cmp.Or(n.Separator, ".") }

func (n Names) join() string { return cmp.Or(n.Prefix, "retry") + n.separator() }
