package relay_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestManyMessagesComeBackInOrder: gochannel delivers all at once and not in order, and a long tier takes many hops.
func TestManyMessagesComeBackInOrder(t *testing.T) {
	for _, tier := range []time.Duration{time.Second, 3 * time.Minute} {
		t.Run(tier.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const orders = 300
				a := newApp(t, backoff.Schedule{tier})
				f := newFailsOnce()
				a.handle("billing", f.handle(orders))
				a.run()
				for i := range orders {
					a.publish(fmt.Sprint(i))
					time.Sleep(tier/orders/2 + 1234*time.Nanosecond) // the record's times have milliseconds
				}
				<-f.done
				require.Len(t, f.back, orders, "none lost")
				var last time.Time
				for i, one := range a.publisher.to("retry.return.billing") {
					late := one.at.Sub(f.failed[one.msg.UUID]) - tier
					require.GreaterOrEqual(t, late, time.Duration(0), "never early")
					require.LessOrEqual(t, late, 5*time.Millisecond)
					require.False(t, one.at.Before(last), "message %d", i)
					last = one.at
				}
				a.close()
				require.Len(t, f.all, 2*orders, "none twice")
			})
		})
	}
}

// TestRestOfARequestedDelayIsWaitedForOnAShorterTier: at the end of its own tier the message would wait behind later ones.
func TestRestOfARequestedDelayIsWaitedForOnAShorterTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second, 5 * time.Second})
		var c calls
		done := make(chan struct{})
		a.handle("billing", func(msg *message.Message) error {
			if c.add(msg) == 1 {
				return backoff.RetryAfter(errDown, 5500*time.Millisecond)
			}
			close(done)
			return nil
		})
		a.run()
		a.publish("1")
		<-done
		for _, topic := range []string{"retry.5s", "retry.1s", "retry.return.billing"} {
			assert.Len(t, a.publisher.to(topic), 1, topic)
		}
		a.close()
	})
}

func TestRequestedDelaysBeyondAndBetweenTheTiers(t *testing.T) {
	for _, requested := range []time.Duration{700 * time.Millisecond, 3 * time.Second, 47 * time.Second, 5 * time.Hour} {
		t.Run(requested.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newApp(t, backoff.Schedule{time.Second, 30 * time.Second})
				var c calls
				done := make(chan struct{})
				a.handle("billing", func(msg *message.Message) error {
					if c.add(msg) == 1 {
						return backoff.RetryAfter(errDown, requested)
					}
					close(done)
					return nil
				})
				a.run()
				a.publish("1")
				<-done
				require.Len(t, c.waits(), 1)
				assert.GreaterOrEqual(t, c.waits()[0], requested)
				assert.LessOrEqual(t, c.waits()[0], requested+5*time.Millisecond)
				a.close()
			})
		})
	}
}

func TestNoOtherHandlerSeesTheRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		var billing, printing calls
		done := make(chan struct{})
		a.handle("billing", func(msg *message.Message) error {
			if billing.add(msg) == 1 {
				return errDown
			}
			close(done)
			return nil
		})
		a.handle("printing", func(msg *message.Message) error { printing.add(msg); return nil })
		a.run()
		a.publish("1")
		<-done
		a.close()
		assert.Len(t, printing.all, 1)
		assert.Len(t, billing.all, 2)
	})
}

func TestPublishThatFailsIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		a.publisher.fail = func(topic string, tries int) error {
			switch {
			case topic == "retry.return.billing" && tries == 2:
				panic("in the publisher")
			case topic == "retry.return.billing" && tries <= 4:
				return errDown
			}
			return nil
		}
		a.expectOneRetry(time.Second, 10*time.Second)
	})
}

// TestEveryTryPublishesAFreshCopy: a publisher may modify the message that it publishes.
func TestEveryTryPublishesAFreshCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier, out := &scripted{}, &spoiler{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier), func(c *relay.Config) { c.Publisher = out })
		a.handle("billing", ignore)
		a.run()
		msg := waitingFor(t.Context(), 0)
		tier.send(msg)
		<-msg.Acked()
		assert.Equal(t, []string{"billing", "billing", "billing"}, out.handlers)
		a.close()
	})
}

type spoiler struct{ handlers []string }

func (s *spoiler) Publish(_ string, messages ...*message.Message) error {
	s.handlers = append(s.handlers, messages[0].Metadata[recordkey.Handler])
	messages[0].Metadata[recordkey.Handler] = "spoiled"
	if len(s.handlers) < 3 {
		return errDown
	}
	return nil
}

func (s *spoiler) Close() error { return nil }

// TestMessagesAreForwardedInTheOrderOfTheirDueTimes: gochannel delivers messages in any order.
func TestMessagesAreForwardedInTheOrderOfTheirDueTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tier := &scripted{}
		a := newApp(t, backoff.Schedule{10 * time.Second}, withTier(tier))
		a.handle("billing", ignore)
		a.run()
		start := time.Now()
		var all []*message.Message
		for _, wait := range []int{9, 1, 5, 3, 7} {
			all = append(all, waitingFor(t.Context(), time.Duration(wait)*time.Second))
			tier.send(all[len(all)-1])
		}
		for _, msg := range all {
			<-msg.Acked()
		}
		back := a.publisher.to("retry.return.billing")
		require.Len(t, back, 5)
		for i, one := range back {
			assert.Equal(t, time.Duration(2*i+1)*time.Second+time.Millisecond, one.at.Sub(start))
		}
		a.close()
	})
}

// TestLongOutageLosesNothing: a message that may be held no longer is nacked and comes back, but not in a hot loop.
func TestLongOutageLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{50 * time.Millisecond})
		until := time.Now().Add(time.Hour)
		a.publisher.fail = func(topic string, tries int) error {
			if topic == "retry.return.billing" && time.Now().Before(until) {
				return errDown
			}
			return nil
		}
		a.expectOneRetry(time.Hour, time.Hour+10*time.Second)
		assert.Less(t, a.publisher.seen["retry.return.billing"], 7*3600)
	})
}

// expectOneRetry runs the app with a handler that fails once, and closes it.
func (a *app) expectOneRetry(shortest, longest time.Duration) {
	var c calls
	done := make(chan struct{})
	a.handle("billing", func(msg *message.Message) error {
		if c.add(msg) == 1 {
			return errDown
		}
		close(done)
		return nil
	})
	a.run()
	a.publish("1")
	<-done
	a.close()
	require.Len(a.t, c.waits(), 1)
	assert.GreaterOrEqual(a.t, c.waits()[0], shortest)
	assert.LessOrEqual(a.t, c.waits()[0], longest)
}

func TestGarbledMessagesOnATier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Minute})
		a.handle("billing", func(msg *message.Message) error { return nil })
		a.run()
		put := func(uuid string, metadata message.Metadata) {
			msg := message.NewMessage(uuid, []byte(uuid))
			msg.Metadata = metadata
			require.NoError(t, a.pubSub.Publish("retry.1m", msg))
		}
		put("foreign", message.Metadata{"trace": "abc"})
		put("nil", nil)
		put("no handler", message.Metadata{recordkey.Failures: "1"})
		put("garbled count", message.Metadata{recordkey.Failures: "-1", recordkey.Handler: "billing"})
		put("garbled time", message.Metadata{recordkey.Failures: "2", recordkey.Handler: "billing", recordkey.DueAt: "soon"})
		put("elsewhere", message.Metadata{recordkey.Failures: "1", recordkey.Handler: "of another process"})
		put("garbled hop", message.Metadata{
			recordkey.Failures: "1", recordkey.Handler: "of another process", "retry_hop_due_at": "soon",
			recordkey.DueAt: time.Now().Add(time.Minute).UTC().Format("2006-01-02T15:04:05.000Z"),
		})
		start := time.Now()
		time.Sleep(2 * time.Minute)
		a.close()

		unknown := a.publisher.to("retry.dead.unknown")
		assert.Len(t, unknown, 5)
		for _, one := range unknown {
			record, ok := retry.ReadRecord(one.msg.Metadata)
			assert.True(t, ok, "ReadRecord reads %s: %v", one.msg.UUID, one.msg.Metadata)
			assert.Equal(t, relay.DeadReasonForeign, record.DeadReason)
			assert.Equal(t, 1, record.Failures)
			assert.WithinDuration(t, start, record.LastFailedAt, time.Second)
			assert.Equal(t, record.LastFailedAt, record.FirstFailedAt)
			assert.Zero(t, record.DueAt)
			assert.Equal(t, "retry.1m", record.Topic)
			assert.Equal(t, "the retry middleware did not publish this message", record.Reason)
			assert.Equal(t, record.Reason, one.msg.Metadata["reason_poisoned"], "a poison queue's reader reads it, too")
			assert.Equal(t, one.msg.UUID, string(one.msg.Payload))
		}
		back := a.publisher.to("retry.return.of another process")
		require.Len(t, back, 2)
		assert.Equal(t, "elsewhere", back[0].msg.UUID)
		assert.Equal(t, "garbled hop", back[1].msg.UUID)
		assert.GreaterOrEqual(t, back[1].at.Sub(start), time.Minute)
		assert.NotContains(t, back[1].msg.Metadata, "retry_hop_due_at")
		assert.Less(t, len(a.publisher.to("retry.1m")), 5, "no hot loop")
	})
}

// TestHandlerNameThatCannotBeATopic: the message is dead-lettered and does not block its tier.
func TestHandlerNameThatCannotBeATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
			c.GenerateTopic = func(p relay.TopicParams) (string, error) {
				if p.Handler == "a b" {
					return "", fmt.Errorf("%q contains a space", p.Handler)
				}
				return fmt.Sprintf("%d_%v_%s", p.Kind, p.Tier, p.Handler), nil
			}
		})
		a.handle("billing", func(*message.Message) error { return nil })
		a.run()
		msg := message.NewMessage("1", nil)
		msg.Metadata = message.Metadata{
			recordkey.Failures: "3", recordkey.Handler: "a b", recordkey.Topic: "orders", recordkey.Reason: "the bank is down",
			recordkey.LastFailedAt: "2000-01-01T00:00:00.000Z", recordkey.DueAt: "2000-01-01T00:00:00.100Z",
		}
		require.NoError(t, a.pubSub.Publish("0_1s_", msg))
		time.Sleep(time.Second)
		a.close()
		unknown := a.publisher.to("2_0s_unknown")
		require.Len(t, unknown, 1)
		record, ok := retry.ReadRecord(unknown[0].msg.Metadata)
		require.True(t, ok)
		failedAt := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		assert.Equal(t, retry.Record{
			Failures: 3, FirstFailedAt: failedAt, LastFailedAt: failedAt, Reason: "the bank is down", Topic: "orders", Handler: "a b",
			Subscriber: "gochannel.GoChannel", DeadReason: relay.DeadReasonForeign,
		}, record, "what its own record states is kept")
	})
}

// TestFirstHopBeginsAtTheFailure: most backends deliver one message at a time, so each message must carry the end of its hop.
func TestFirstHopBeginsAtTheFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second, 50 * time.Second})
		a.handle("billing", func(msg *message.Message) error {
			switch msg.UUID {
			case "dead":
				return backoff.Permanent(errDown)
			case "long":
				return backoff.RetryAfter(errDown, time.Hour)
			}
			return errDown
		})
		a.run()
		for _, uuid := range []string{"dead", "short", "long"} {
			msg := orderOf(uuid)
			msg.Metadata["retry_hop_due_at"] = "2000-01-01T00:00:00.000Z" // as in a copy of a retried message
			require.NoError(t, a.pubSub.Publish("orders", msg))
		}
		synctest.Wait()
		assert.NotContains(t, a.publisher.to("retry.dead.billing")[0].msg.Metadata, "retry_hop_due_at")
		assert.NotContains(t, a.publisher.to("retry.1s")[0].msg.Metadata, "retry_hop_due_at")
		assert.Equal(t, "2000-01-01T00:00:16.667Z", a.publisher.to("retry.50s")[0].msg.Metadata["retry_hop_due_at"], "a third of the tier")
		a.close()
	})
}

func TestSlowHandlerDoesNotBlockItsTier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second})
		var fast calls
		release, done := make(chan struct{}), make(chan struct{})
		a.handle("slow", func(msg *message.Message) error {
			if _, retried := retry.ReadRecord(msg.Metadata); retried {
				<-release
				return nil
			}
			return errDown
		})
		a.handle("fast", func(msg *message.Message) error {
			if fast.add(msg) == 1 {
				return errDown
			}
			close(done)
			return nil
		})
		a.run()
		a.publish("1")
		<-done
		assert.LessOrEqual(t, fast.waits()[0], 1010*time.Millisecond)
		close(release)
		a.close()
	})
}

// TestHandlerThatTheRelayDidNotAddIsRefused: nothing subscribes to its return topic. The error names the handler, the topic and
// what to do.
func TestHandlerThatTheRelayDidNotAddIsRefused(t *testing.T) { // not in a bubble: the router holds a lock while it closes
	logger := watermill.NewCaptureLogger()
	a := newApp(t, backoff.Schedule{time.Second})
	tiered, err := retrymw.New(retry.Policy{Schedule: backoff.Schedule{time.Second}}, a.tiers.Backend(), logger)
	require.NoError(t, err)
	a.router.AddConsumerHandler("billing", "orders", a.pubSub, func(*message.Message) error {
		t.Error("the handler is called")
		return errDown
	}).AddMiddleware(tiered.Middleware)
	a.run()
	a.publish("1")
	refusals := func() []watermill.CapturedMessage { return logger.Captured()[watermill.ErrorLogLevel] }
	require.Eventually(t, func() bool { return len(refusals()) > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, a.router.Close())
	require.NoError(t, <-a.stopped)
	require.NoError(t, a.tiers.Close())
	require.NoError(t, a.pubSub.Close())
	assert.Empty(t, a.publisher.all, "nothing is published")
	for _, want := range []string{`handler "billing" on topic "orders"`, `the relay with prefix "retry"`, "add its handler with AddConsumerHandler"} {
		assert.ErrorContains(t, refusals()[0].Err, want)
	}
}

// TestTiersOfARetiredScheduleAreEmptied: no new message goes there.
func TestTiersOfARetiredScheduleAreEmptied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newApp(t, backoff.Schedule{time.Second}, func(c *relay.Config) {
			c.RetiredSchedule = backoff.Schedule{time.Second, 5 * time.Second}
		})
		a.handle("billing", func(*message.Message) error { return nil })
		a.run()
		msg := message.NewMessage("1", nil)
		msg.Metadata = message.Metadata{recordkey.Failures: "1", recordkey.Handler: "billing", recordkey.Topic: "orders"}
		require.NoError(t, a.pubSub.Publish("retry.5s", msg))
		time.Sleep(time.Second)
		a.close()
		assert.Len(t, a.publisher.to("retry.return.billing"), 1)
	})
}
