package redisretry

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

// The keys of a return topic have one hash tag, and begin with the prefix, for the key patterns of an ACL.
func TestTheKeysOfAReturnTopicAreInOneSlot(t *testing.T) {
	t.Parallel()
	s := newServer(Config{Client: redis.NewClient(&redis.Options{}), Prefix: "shop.retries"}, nil)
	keys := s.keys("shop.retries.return.billing.orders")
	keys = append(keys, s.subscribed("shop.retries.return.billing.orders"))
	tag := func(key string) string {
		_, rest, _ := strings.Cut(key, "{")
		inside, _, found := strings.Cut(rest, "}")
		assert.True(t, found)
		return inside
	}
	for _, key := range keys {
		assert.Equal(t, tag(keys[0]), tag(key))
		assert.True(t, strings.HasPrefix(key, "shop.retries."), key)
	}
}

// A delay that cannot be read is none: the message is due at once.
func TestTheDelayOfAMessage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "1m30s": 90 * time.Second, "-1s": 0, "soon": 0, "1ns": time.Nanosecond,
	} {
		msg := message.NewMessage("1", nil)
		msg.Metadata.Set(delay.DelayedForKey, text)
		assert.Equal(t, want, delayOf(msg), text)
	}
}
