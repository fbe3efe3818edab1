package retry_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestOrphansFollowTheDocumentation: the redrive of docs/operations.md sends orphans back to the queue that exists
// again. Orphans of a queue that is still gone stay.
func TestOrphansFollowTheDocumentation(t *testing.T) {
	t.Parallel()
	const orphans = 5
	a := testapp.New(t)
	queue, gone := a.Queue("orders"), a.Queue("gone")
	a.Declare(queue, gone)
	for _, name := range []string{queue, gone} {
		testapp.Delete(t, name)
	}
	sent := testapp.Orders(2 * orphans)
	for i := range sent {
		sent[i].CorrelationId = "c-" + strconv.Itoa(i)
		sent[i].Headers["number"] = int64(i)
		sent[i].Headers[recordkey.Failures] = "1"
		sent[i].Headers[recordkey.Topic] = queue
	}
	testapp.Send(t, a.Name, "100ms."+gone, sent[:orphans]...)
	testapp.Send(t, a.Name, "100ms."+queue, sent[orphans:]...)
	broker.Eventually(t, 60*time.Second, func() bool { return testapp.Depth(t, a.Name+".orphans") == 2*orphans },
		"all messages are orphans")

	processed := testapp.NewLedger()
	a.Handle(queue, 2, func(msg *message.Message) error {
		record, retried := retry.ReadRecord(msg.Metadata)
		assert.True(t, retried)
		assert.Equal(t, 1, record.Failures)
		assert.Equal(t, "order "+msg.UUID, string(msg.Payload))
		properties := msg.Metadata[recordkey.Properties]
		assert.Contains(t, properties, "c-", "the correlation id")
		assert.Contains(t, properties, "number", "a header that is no string")
		assert.NotContains(t, properties, "x-death")
		processed.Add(msg.UUID)
		return nil
	})
	a.Run()
	store := letterStore(t, a.Name)
	summary, err := store.Redrive(t.Context(), store.Orphans(), letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoTarget, "some orphans have no queue")
	assert.Equal(t, 2*orphans, summary.Total)
	assert.Equal(t, orphans, summary.Done)

	processed.Wait(t, orphans, 60*time.Second)
	a.Settle(queue)
	assert.Empty(t, processed.Twice())
	for i := range orphans {
		assert.Contains(t, processed.Counts(), testapp.ID(orphans+i))
	}
	stay := testapp.NewLedger()
	for _, d := range testapp.Take(t, a.Name+".orphans", orphans) {
		stay.Add(string(d.Body))
		assert.Equal(t, "100ms."+gone, d.RoutingKey)
	}
	for i := range orphans {
		assert.Equal(t, 1, stay.Counts()["order "+testapp.ID(i)])
	}
	assert.Zero(t, testapp.Depth(t, a.Name+".orphans"))
}

// TestOrphansWithoutTheirReturnExchange: the error is returned, and the orphan stays.
func TestOrphansWithoutTheirReturnExchange(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	a.Declare(a.Queue("orders"))
	require.NoError(t, broker.Channel(t).ExchangeDelete(a.Name+".return", false, false))
	testapp.Send(t, "", a.Name+".orphans", testapp.Orders(1)...)

	store := letterStore(t, a.Name)
	summary, err := store.Redrive(t.Context(), store.Orphans(), letters.Redrive{})

	require.Error(t, err)
	assert.Equal(t, [2]int{1, 0}, [2]int{summary.Total, summary.Done})
	assert.Equal(t, "order "+id0, string(testapp.Take(t, a.Name+".orphans", 1)[0].Body))
}
