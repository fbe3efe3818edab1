package deadletter_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// A patient is an app whose handler fails until it is repaired.
type patient struct {
	*testapp.App
	queue    string
	store    *deadletter.Store
	repaired atomic.Bool
	failed   *testapp.Ledger
	handled  *testapp.Ledger
}

// ill runs an app with so many dead letters.
func ill(t *testing.T, count int) *patient {
	t.Helper()
	p := &patient{App: testapp.New(t), failed: testapp.NewLedger(), handled: testapp.NewLedger()}
	p.queue, p.store = p.Queue("orders"), open(t, broker.URL(t), p.Name)
	bury(t, p.App, p.queue, count)
	p.Handle(p.queue, 8, func(msg *message.Message) error {
		if !p.repaired.Load() {
			p.failed.Add(msg.UUID)
			return backoff.Permanent(errDown)
		}
		p.handled.Add(msg.UUID)
		return nil
	})
	p.Run()
	return p
}

func (p *patient) redrive(t *testing.T, options letters.Redrive) (letters.Summary, error) {
	t.Helper()
	summary, err := p.store.Redrive(t.Context(), deadletter.QueueOf(p.queue), options)
	adds(t, summary)
	return summary, err
}

// all waits until each message is a dead letter again or was handled, and is there once.
func (p *patient) all(t *testing.T, count int) {
	t.Helper()
	broker.Eventually(t, soon, func() bool {
		return p.handled.Len()+testapp.Depth(t, deadletter.QueueOf(p.queue)) == count && testapp.Depth(t, p.queue) == 0
	}, "each message is dead or was handled")
	seen := p.handled.Counts()
	for _, l := range list(t, p.store, deadletter.QueueOf(p.queue)) {
		seen[l.ID]++
	}
	assert.Len(t, seen, count)
	for id, times := range seen {
		assert.Equal(t, 1, times, id)
	}
}

// TestRedriveSendsOnlyWhatWasThere: letters that die again under way are behind the others, and are not sent again.
func TestRedriveSendsOnlyWhatWasThere(t *testing.T) {
	t.Parallel()
	const count = 200
	p := ill(t, count)
	summary, err := p.redrive(t, letters.Redrive{})
	require.NoError(t, err)
	assert.Equal(t, count, summary.Total)
	assert.Equal(t, count, summary.Done)
	p.failed.Wait(t, count, soon)
	p.all(t, count)
	assert.Empty(t, p.failed.Twice())
	for _, l := range list(t, p.store, deadletter.QueueOf(p.queue)) {
		assert.Equal(t, 1, l.Redriven.Times)
		assert.Equal(t, 1, l.Record.Failures, "a fresh count")
	}
	p.repaired.Store(true)
	summary, err = p.redrive(t, letters.Redrive{Rate: 1000})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: count}, summary)
	p.handled.Wait(t, count, soon)
	p.all(t, count)
	assert.Zero(t, testapp.Depth(t, deadletter.QueueOf(p.queue)))
}

// TestOneRedriveAtATime: the second one ends at once, and the first one goes on until its context ends.
func TestOneRedriveAtATime(t *testing.T) {
	t.Parallel()
	const count = 100
	p := ill(t, count)
	p.repaired.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type result struct {
		summary letters.Summary
		err     error
	}
	begun, ended := make(chan struct{}), make(chan result, 1)
	var once sync.Once
	go func() {
		summary, err := p.store.Redrive(ctx, deadletter.QueueOf(p.queue),
			letters.Redrive{Rate: 0.5, Progress: func(progress letters.Progress) {
				if progress.Done > 0 {
					once.Do(func() { close(begun) })
				}
			}})
		ended <- result{summary, err}
	}()
	broker.Receive(t, begun, "the first letter was sent")
	another := open(t, broker.URL(t), p.Name)
	_, err := another.Redrive(t.Context(), deadletter.QueueOf(p.queue), letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrBusy)
	require.ErrorContains(t, err, deadletter.QueueOf(p.queue))
	_, err = p.store.Discard(t.Context(), deadletter.QueueOf(p.queue), letters.Discard{})
	require.ErrorIs(t, err, letters.ErrBusy)
	bury(t, p.App, p.Queue("others"), 1)
	_, err = another.Redrive(t.Context(), deadletter.QueueOf(p.Queue("others")), letters.Redrive{})
	require.NoError(t, err, "another queue")

	cancel()
	first := broker.Receive(t, ended, "the first redrive ends")
	require.ErrorIs(t, first.err, context.Canceled)
	adds(t, first.summary)
	assert.Equal(t, count, first.summary.Total)
	assert.Less(t, first.summary.Done, count)
	summary, err := p.redrive(t, letters.Redrive{})
	require.NoError(t, err, "the lock is gone")
	assert.Equal(t, count-first.summary.Done, summary.Done)
	p.handled.Wait(t, count, soon)
	p.all(t, count)
}

// TestOrphansGoHome: with the record that they have, and those whose queue is still gone stay.
func TestOrphansGoHome(t *testing.T) {
	t.Parallel()
	const count = 20
	a := testapp.New(t)
	queue, gone := a.Queue("orders"), a.Queue("gone")
	a.Declare(queue, gone)
	for _, name := range []string{queue, gone} {
		testapp.Delete(t, name)
	}
	sent := testapp.Orders(2 * count)
	for i := range sent {
		sent[i].Headers["number"], sent[i].Headers[recordkey.Failures], sent[i].Headers[recordkey.Topic] = int64(i), "1", queue
		if i >= count {
			sent[i].Headers[recordkey.Topic] = gone
		}
	}
	testapp.Send(t, a.Name, "100ms."+queue, sent[:count]...)
	testapp.Send(t, a.Name, "100ms."+gone, sent[count:]...)
	store := open(t, broker.URL(t), a.Name)
	broker.Eventually(t, soon, func() bool { return testapp.Depth(t, store.Orphans()) == 2*count }, "all are orphans")
	for _, l := range list(t, store, store.Orphans()) {
		require.Equal(t, letters.Orphan, l.Kind)
		require.Equal(t, 1, l.Record.Failures)
		require.Equal(t, map[bool]string{true: queue, false: gone}[l.Headers["number"].(int64) < count], l.Target)
	}

	handled := testapp.NewLedger()
	a.Handle(queue, 2, func(msg *message.Message) error {
		record, retried := retry.ReadRecord(msg.Metadata)
		assert.True(t, retried)
		assert.Equal(t, 1, record.Failures)
		handled.Add(msg.UUID)
		return nil
	})
	a.Run()
	summary, err := store.Redrive(t.Context(), store.Orphans(), letters.Redrive{})
	require.ErrorIs(t, err, letters.ErrNoTarget)
	require.ErrorContains(t, err, `"`+gone+`"`)
	assert.Equal(t, letters.Summary{Total: 2 * count, Done: count, Kept: count}, summary)
	handled.Wait(t, count, soon)
	a.Settle(queue)
	assert.Empty(t, handled.Twice())
	for _, id := range upTo(count) {
		assert.Contains(t, handled.Counts(), id)
	}
	left := list(t, store, store.Orphans())
	assert.Equal(t, upTo(2 * count)[count:], ids(left))
	for _, l := range left {
		assert.Equal(t, gone, l.Target)
	}
}

// TestAWorkQueueThatRefusesStopsTheRedrive: what it does not take stays a dead letter.
func TestAWorkQueueThatRefusesStopsTheRedrive(t *testing.T) {
	t.Parallel()
	const count, most = 50, 5
	a := testapp.New(t)
	queue := a.Queue("full")
	declare(t, queue, amqp091.Table{"x-queue-type": "classic", "x-max-length": int64(most),
		"x-overflow": "reject-publish"})
	declare(t, deadletter.QueueOf(queue), amqp091.Table{"x-queue-type": "quorum"})
	testapp.Send(t, "", deadletter.QueueOf(queue), dead(queue, count)...)
	store := open(t, broker.URL(t), a.Name)
	summary, err := store.Redrive(t.Context(), deadletter.QueueOf(queue), letters.Redrive{})
	require.ErrorContains(t, err, `"`+queue+`" refuses letters`)
	adds(t, summary)
	assert.Equal(t, count, summary.Total)
	assert.Equal(t, most, summary.Done)
	seen := map[string]int{}
	for _, l := range append(list(t, store, deadletter.QueueOf(queue)), list(t, store, queue)...) {
		seen[l.ID]++
	}
	for _, id := range upTo(count) {
		assert.Equal(t, 1, seen[id], id)
	}
}

// TestALetterThatIsTooLargeForItsHistory: a letter whose own headers fill a frame goes home without the history of
// redrives.
func TestALetterThatIsTooLargeForItsHistory(t *testing.T) {
	t.Parallel()
	a := testapp.New(t)
	queue := a.Queue("orders")
	a.Declare(queue)
	p := testapp.Orders(1)[0]
	p.Headers["large"] = strings.Repeat("x", 131072-300)
	testapp.Send(t, "", deadletter.QueueOf(queue), p)
	store := open(t, broker.URL(t), a.Name)
	summary, err := store.Redrive(t.Context(), deadletter.QueueOf(queue), letters.Redrive{Note: strings.Repeat("n", 128)})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 1, Done: 1}, summary)
	d := testapp.Take(t, queue, 1)[0]
	assert.True(t, p.Headers["large"] == d.Headers["large"], "the app's own header")
	assert.Equal(t, testapp.ID(0), d.Headers["_watermill_message_uuid"])
	_, found := d.Headers[recordkey.Redriven]
	assert.False(t, found, "the history")
}

// TestASlowRedriveSendsNoLetterTwice: from RabbitMQ 4.3 on a quorum queue takes letters back from a consumer that has
// them for longer than the timeout of the queue, and accepts their acknowledgement without an effect.
func TestASlowRedriveSendsNoLetterTwice(t *testing.T) {
	t.Parallel()
	const count = 12
	a := testapp.New(t)
	queue, parked := a.Queue("orders"), a.Queue("parked")
	a.Declare(queue)
	declare(t, parked, amqp091.Table{"x-queue-type": "quorum", "x-consumer-timeout": int64(1000)})
	testapp.Send(t, "", parked, dead(queue, count)...)
	store := open(t, broker.URL(t), a.Name)
	summary, err := store.Redrive(t.Context(), parked, letters.Redrive{To: queue, Rate: 3, Limit: count - 1})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: count, Done: count - 1, Unseen: 1}, summary)
	assert.Equal(t, 1, testapp.Depth(t, parked))
	assert.Equal(t, count-1, testapp.Depth(t, queue))
}
