package relay_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// otherClock writes the due times of the copies of the middleware as a host does whose clock is ahead of the relay's by so much.
type otherClock struct {
	message.Publisher
	ahead time.Duration
}

func (o otherClock) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if record, ok := retry.ReadRecord(msg.Metadata); ok && message.HandlerNameFromCtx(msg.Context()) != "" {
			record.DueAt = record.DueAt.Add(o.ahead)
			record.Write(msg.Metadata)
		}
	}
	return o.Publisher.Publish(topic, messages...)
}

// A retry is late or early by the difference between the clocks. Early by its delay at most. Lateness costs one publish for each round of
// the longest tier.
func TestClockOfTheFailingHost(t *testing.T) {
	schedule := backoff.Schedule{time.Second, 5 * time.Second, 40 * time.Second}
	for _, row := range []struct {
		ahead, waits time.Duration
		publishes    int // to tiers
	}{
		{0, time.Second, 1},
		{300 * time.Millisecond, 1300 * time.Millisecond, 2},
		{-300 * time.Millisecond, 700 * time.Millisecond, 1},
		{time.Minute, 61 * time.Second, 7},
		{-2 * time.Hour, 0, 1},
		{2 * time.Hour, 7201 * time.Second, 2*60*60/40 + 5},
	} {
		bubble(t, row.ahead.String(), func(t *testing.T) {
			a := newApp(t, schedule, func(c *relay.Config) { c.Publisher = otherClock{c.Publisher, row.ahead} })
			waited := newFailsOnce().retried(a)
			assert.GreaterOrEqual(t, waited, row.waits)
			assert.LessOrEqual(t, waited, row.waits+10*time.Millisecond)
			assert.LessOrEqual(t, publishesToTiers(t, a, schedule, 500*time.Millisecond), row.publishes)
			assert.Len(t, a.publisher.to("retry.return.billing"), 1)
			a.close()
		})
	}
}

// publishesToTiers counts them, and refuses a pause between two that is shorter than least, except before the last one.
func publishesToTiers(t *testing.T, a *app, schedule backoff.Schedule, least time.Duration) int {
	t.Helper()
	a.publisher.mu.Lock()
	defer a.publisher.mu.Unlock()
	var at []time.Time
	for _, p := range a.publisher.all {
		for _, tier := range schedule.Tiers() {
			if p.topic == "retry."+tier.String() {
				at = append(at, p.at)
			}
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	for i := 1; i < len(at)-1; i++ {
		assert.GreaterOrEqual(t, at[i].Sub(at[i-1]), least, "publish %d", i)
	}
	return len(at)
}

// A due time that an app did not write is waited for, up to backoff.MaxDelay. It costs one publish for each round of the longest tier, and
// at most one each second. On a message of the app's own topic it is not waited for.
func TestForgedDueTime(t *testing.T) {
	for _, row := range []struct {
		schedule  backoff.Schedule
		watched   time.Duration
		publishes int
		least     time.Duration
	}{
		{backoff.Schedule{time.Second, 40 * time.Second}, 24 * time.Hour, 24*60*60/40 + 2, time.Second},
		{backoff.Schedule{time.Millisecond, time.Second}, time.Hour, 60*60 + 60, time.Millisecond},
		{backoff.Schedule{time.Millisecond}, time.Hour, 60*60 + 60, 990 * time.Millisecond},
	} {
		bubble(t, fmt.Sprint(row.schedule), func(t *testing.T) {
			a := newApp(t, row.schedule)
			var called calls
			a.handle("billing", func(*message.Message) error { called.add(); return nil })
			a.run()
			forged := orderOf("1")
			retry.Record{
				Failures: 1, Topic: "orders", Handler: "billing", FirstFailedAt: time.Now(), LastFailedAt: time.Now(),
				DueAt: time.Now().AddDate(1, 0, 0),
			}.Write(forged.Metadata)
			require.NoError(t, a.pubSub.Publish("retry."+row.schedule.Tiers()[0].String(), forged))
			time.Sleep(row.watched)
			publishes := publishesToTiers(t, a, row.schedule, row.least)
			assert.LessOrEqual(t, publishes, row.publishes)
			assert.Greater(t, publishes, row.publishes/2, "the message circles")
			assert.Empty(t, a.publisher.to("retry.return.billing"))
			require.NoError(t, a.pubSub.Publish("orders", forged.Copy()))
			synctest.Wait()
			assert.Len(t, called.all, 1)
			a.close()
		})
	}
}

// A message that components/delay has delayed waits before its first try, and counts no failure: on a tier, or with
// DelayedReturns on its return topic.
func TestDelayedMessageWaitsOnceBeforeItsFirstTry(t *testing.T) {
	for _, delayedReturns := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			a := newApp(t, backoff.Schedule{time.Second}, func(config *relay.Config) {
				if config.DelayedReturns = delayedReturns; delayedReturns {
					config.Publisher = delaying{config.Publisher}
				}
			})
			done := make(chan *message.Message, 1)
			a.handle("billing", func(msg *message.Message) error { done <- msg; return nil })
			a.run()
			msg := orderOf("1")
			delay.Message(msg, delay.For(47*time.Second))
			began := time.Now()
			require.NoError(t, a.Publisher().Publish("orders", msg))
			record, _ := retry.ReadRecord((<-done).Metadata)
			assert.GreaterOrEqual(t, time.Since(began), 47*time.Second)
			assert.LessOrEqual(t, time.Since(began), 47*time.Second+10*time.Millisecond)
			assert.Zero(t, record.Failures)
			assert.Equal(t, !delayedReturns, len(a.publisher.to("retry.1s")) > 0)
			assert.Len(t, a.publisher.to("retry.return.billing"), 1)
			a.close()
		})
	}
}

// delaying publishes when the time in the metadata has come.
type delaying struct{ message.Publisher }

func (d delaying) Publish(topic string, messages ...*message.Message) error {
	until, err := time.Parse(time.RFC3339Nano, messages[0].Metadata.Get(delay.DelayedUntilKey))
	if err != nil {
		return err
	}
	time.AfterFunc(time.Until(until), func() { _ = d.Publisher.Publish(topic, messages...) })
	return nil
}
