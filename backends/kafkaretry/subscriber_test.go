package kafkaretry

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/relay"
)

// No two groups and topics share a consumer group.
func TestConsumerGroups(t *testing.T) {
	t.Parallel()
	seen := map[string][2]string{}
	for _, of := range [][2]string{
		{"billing", "orders"}, {"billing", "orders.eu"}, {"billing.orders", "eu"}, {"billing", "retry.return.billing.orders"},
	} {
		s := &subscriber{params: relay.SubscriberParams{Group: of[0]}}
		group := s.group(of[1])
		assert.NotContains(t, seen, group, of)
		seen[group] = of
	}
	assert.Equal(t, [2]string{"billing", "orders"}, seen["billing.orders"])
}
