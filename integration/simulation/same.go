package simulation

import (
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// same checks that a message comes as it was published.
func (l *ledger) same(m *letter, msg *message.Message) {
	rest := message.Metadata(maps.Clone(msg.Metadata))
	for key := range rest {
		if strings.HasPrefix(key, "_watermill_") || strings.HasPrefix(key, "retry_") || strings.HasSuffix(key, "_poisoned") {
			delete(rest, key)
		}
	}
	want := message.Metadata{"key": rest["key"]}
	if msg.UUID != m.id || m.key != "" && rest["key"] != m.key || !maps.Equal(rest, want) {
		keys := slices.Sorted(maps.Keys(rest))
		l.violate(m.id, "%s is not as it was: UUID %q, key %q, metadata %q", m.id, msg.UUID, rest["key"], keys)
	}
}
