package page

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// TestOverdueTiersMustStay: a tier that works has a few overdue messages at most moments.
func TestOverdueTiersMustStay(t *testing.T) {
	t.Parallel()
	tier := deadletter.Tier{Depth: deadletter.Depth{Queue: "orders.retry.1s"}}
	at := time.Now()
	var o overdue
	look := func(after time.Duration, messages int) bool {
		at = at.Add(after)
		tier.Overdue = messages
		return o.look(deadletter.Status{Queues: []deadletter.WorkQueue{{Tiers: []deadletter.Tier{tier}}}}, at)[tier.Queue]
	}
	assert.False(t, look(0, 3))
	assert.False(t, look(overdueAge-1, 3))
	assert.False(t, look(1, 0), "it has forwarded them")
	assert.False(t, look(1, 3), "these are others")
	assert.False(t, look(overdueAge-1, 5))
	assert.True(t, look(1, 5))
	assert.False(t, look(overdueGap+1, 5), "nothing is known about the time without a look")
	assert.True(t, look(overdueAge, 5))
}
