package orders

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// The handler alone: every fourth order has another fault.
func TestBilling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schedule := backoff.Exponential(time.Second, 5, 4) // 1s 5s 25s 125s
		app := retrytest.New(t, schedule)
		app.AddConsumerHandler(app.Router, "billing", "orders", newProvider(schedule).bill)

		orders, err := newOrders(21)
		require.NoError(t, err)
		story := app.SendAll("orders", orders...)

		story[0].RetriedAt(time.Second).Processed() // no answer, once
		story[4].Waited(schedule...).DeadLettered(retry.DeadReasonExhausted)
		story[8].NeverRetried().DeadLettered(retry.DeadReasonPermanent) // the card was stolen
		story[12].RetriedAt(2*time.Minute + 6*time.Second).Processed()  // the provider said when to come back
		story[16].RetriedAt(time.Second).Processed()                    // a panic
		story[20].RetriedAt(time.Second, 6*time.Second).Processed()
	})
}

// The app as main makes it, with its own router.
func TestAppOnTheTestKit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schedule := backoff.Schedule{500 * time.Millisecond, time.Second, 10 * time.Minute}
		kit := retrytest.New(t, schedule)
		backend := &Backend{Topic: "orders", Retries: kit}
		orders, err := newOrders(40)
		require.NoError(t, err)
		provider, journal := newProvider(schedule), newJournal(orders, io.Discard)
		kit.Run(newApp(backend, provider.bill, journal, nil))

		var billed, dead int
		for i, story := range kit.SendAll("orders", orders...) {
			trouble := provider.troubles[i+1]
			switch {
			case trouble.kind == declined:
				dead++
				story.NeverRetried().DeadLettered(retry.DeadReasonPermanent)
			case trouble.failures == always:
				dead++
				story.Waited(schedule...).DeadLettered(retry.DeadReasonExhausted)
			case trouble.kind == busy:
				billed++
				story.Waited(provider.delay).Processed()
			case trouble.failures == 0:
				billed++
				story.NeverRetried().Processed()
			default:
				billed++
				story.Waited(schedule[:trouble.failures]...).Processed()
			}
		}
		assert.Equal(t, 38, billed)
		assert.Equal(t, 2, dead)
		assert.Len(t, journal.billed, billed)
	})
}
