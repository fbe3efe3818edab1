package subscriptions_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
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
		assert.Equal(t, []retry.SubscriptionHealth{
			{Name: "billing", Topic: "orders", Queue: "orders", Consuming: true, Since: began},
			{Name: "mailing", Topic: "mails", Queue: "mails", Since: began.Add(time.Minute), // since the first failure
				LastError: errEnded.Error(), LastErrorAt: began.Add(2 * time.Minute)},
		}, all)

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

func TestHealthOfTopicsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		errDown, errClosed := errors.New("down"), errors.New("closed")
		began := time.Now()
		var list subscriptions.List
		billing := list.New("billing", "orders")
		orders := billing.Report(t.Context(), "orders")
		ended, end := context.WithCancel(billing.Report(t.Context(), "return"))
		subscriptions.Read(t.Context(), errDown)
		assert.Empty(t, list.Health())
		subscriptions.Count(orders, func() int { return 3 })
		subscriptions.Count(ended, func() int { return 4 })
		subscriptions.Count(t.Context(), func() int { return 5 })
		billing.Begin()
		subscriptions.Read(orders, nil)
		health := func() retry.SubscriptionHealth { return list.Health()[0] }
		assert.True(t, health().Consuming)
		assert.Equal(t, 7, health().Backlog, "of both topics")

		time.Sleep(time.Minute)
		subscriptions.Read(orders, errDown)
		list.Begin("billing", "orders").End()
		assert.Len(t, list.Health(), 1, "it has not ended")
		time.Sleep(time.Minute)
		subscriptions.Read(ended, errDown)
		assert.False(t, health().Consuming)
		assert.Equal(t, `cannot read "orders": down; cannot read "return": down`, health().LastError)
		assert.Equal(t, began.Add(time.Minute), health().Since)
		assert.Equal(t, began.Add(2*time.Minute), health().LastErrorAt)
		require.ErrorContains(t, retry.Health{Subscriptions: list.Health()}.Ready(), `cannot read "return": down`)
		subscriptions.Read(orders, nil)
		assert.False(t, health().Consuming)
		assert.Equal(t, `cannot read "return": down`, health().LastError)
		time.Sleep(time.Minute)
		subscriptions.Read(ended, nil)
		assert.True(t, health().Consuming)
		assert.Equal(t, began.Add(3*time.Minute), health().Since)
		assert.NotEmpty(t, health().LastError, "it stays")

		end()
		subscriptions.Read(ended, errDown)
		assert.True(t, health().Consuming, "its subscription has ended")
		subscriptions.Read(orders, errDown)
		billing.Failed(errClosed)
		assert.Equal(t, `closed: cannot read "orders": down`, health().LastError)
		billing.Consumes()
		assert.True(t, health().Consuming)
	})
}
