package subscriptions_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

func TestHealthOfSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errEnded := errors.New("ended")
		began := time.Now()
		var list subscriptions.List
		assert.Empty(t, list.Health())
		mailing, billing := list.Begin("mailing", "mails"), list.Begin("billing", "orders")

		time.Sleep(time.Minute)
		mailing.Failed(errEnded)
		time.Sleep(time.Minute)
		mailing.Failed(errEnded)
		all := list.Health()
		require.Len(t, all, 2)
		assert.Equal(t, "billing", all[0].Name)
		assert.Equal(t, "orders", all[0].Queue)
		assert.True(t, all[0].Consuming)
		assert.Equal(t, began, all[0].Since)
		assert.False(t, all[1].Consuming)
		assert.Equal(t, began.Add(time.Minute), all[1].Since, "since the first failure")
		assert.Equal(t, began.Add(2*time.Minute), all[1].LastErrorAt)

		mailing.Consumes()
		all = list.Health()
		assert.True(t, all[1].Consuming)
		assert.Equal(t, errEnded.Error(), all[1].LastError)

		billing.End()
		mailing.Failed(errEnded)
		list.Begin("mailing", "mails")
		all = list.Health()
		require.Len(t, all, 1, "a new subscription replaces the failed one")
		assert.Empty(t, all[0].LastError)
	})
}
