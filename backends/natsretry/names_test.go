package natsretry

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// No two groups and topics share a consumer, no two topics a stream, and NATS takes all names.
func TestNamesAreUniqueAndSafe(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 200)
	consumers, streams := map[string]bool{}, map[string]bool{}
	topics := []string{
		"orders", "orders.eu", "orders_eu", "orders-eu", "orders.*", "orders.>", "bestellungen-ä", "a\x00", long, long + "x",
	}
	for _, topic := range topics {
		for _, group := range []string{"billing", "billing.orders", "billing_orders", "a b", "\xff", "\xfe", long} {
			name := durableName(group, topic)
			assert.False(t, consumers[name], name)
			consumers[name] = true
			assert.Equal(t, name, sanitized(name))
			assert.LessOrEqual(t, len(name), 120)
		}
		name := streamName(topic)
		assert.False(t, streams[name], name)
		streams[name] = true
		assert.Equal(t, name, sanitized(name))
		assert.LessOrEqual(t, len(name), 120)
	}
	assert.Equal(t, "orders", streamName("orders"))
	assert.Contains(t, durableName("billing", "orders.eu"), "billing_orders_eu-")
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"2.12.0": true, "2.12.15": true, "v2.13.1": true, "3.0.0": true, "2.12.0-RC.1": true, "2.14": true,
		"2.11.9": false, "2.9.25": false, "1.99.0": false, "": false, "dev": false,
	} {
		assert.Equal(t, want, atLeast(version, 2, 12), version)
	}
}
