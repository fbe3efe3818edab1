package natsretry

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// maxName bounds the part of a name that can be read: the server makes folders of the names.
const maxName = 100

// validPrefix reports whether a prefix has no empty part.
func validPrefix(prefix string) bool {
	return !slices.Contains(strings.Split(prefix, "."), "")
}

// streamName returns the name of the stream of a topic or of a prefix. It is the topic itself where NATS takes that, as
// Watermill's own Pub/Sub names its streams.
func streamName(topic string) string {
	if topic != "" && len(topic) <= maxName && sanitized(topic) == topic {
		return topic
	}
	return hashed(topic)
}

// durableName returns the name of the consumer of a group on a topic. The topics of the retries have no group: they
// belong to one.
func durableName(group, topic string) string {
	if group == "" {
		return hashed(topic)
	}
	return hashed(group, topic)
}

// hashed returns a name that can be read and that nothing else has: NATS allows no dots in it.
func hashed(parts ...string) string {
	sum := fmt.Sprintf("-%x", sha256.Sum256(fmt.Appendf(nil, "%q", parts)))[:13]
	plain := sanitized(strings.Join(parts, "_"))
	return plain[:min(len(plain), maxName)] + sum
}

// sanitized replaces what the name of a stream or a consumer may not have.
func sanitized(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		default:
			return '_'
		}
	}, name)
}
