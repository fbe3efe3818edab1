package observe_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// Message n fails n%4 times, and there are two retries.
func TestFeedHasExactlyTheOutcomesThatHappened(t *testing.T) {
	t.Parallel()
	const messages = 100
	f := openFeed(t)
	f.handle("billing", func(msg *message.Message) error {
		n, err := strconv.Atoi(msg.UUID)
		if err != nil {
			return err
		}
		if testapp.Failures(msg) < n%4 {
			return errFeed
		}
		return nil
	})
	f.Run()
	f.Publish(f.Queue("billing"), testapp.IDs(messages)...)

	want, copies := map[string][]retry.Outcome{}, 0
	for i, uuid := range testapp.IDs(messages) {
		fails := i % 4
		want[uuid] = repeated(min(fails, 2), retry.Retried)
		switch fails {
		case 0:
			want[uuid] = append(want[uuid], retry.Processed)
		case 3:
			want[uuid] = append(want[uuid], retry.DeadLettered)
		default:
			want[uuid] = append(want[uuid], retry.Recovered)
		}
		copies += fails
	}
	testapp.Eventually(t, func() bool {
		got := f.outcomes()
		for uuid, outcomes := range want {
			if len(got[uuid]) < len(outcomes) {
				return false
			}
		}
		return true
	}, "all messages have their last outcome")
	testapp.Eventually(t, func() bool { return f.results()["copy confirmed"] == copies }, "the result of each copy")
	assert.Equal(t, want, f.outcomes())
	assert.Equal(t, map[string]int{"app confirmed": messages, "copy confirmed": copies}, f.results())

	first, second := backoff.Tier(100*time.Millisecond), backoff.Tier(time.Second)
	f.mu.Lock()
	defer f.mu.Unlock()
	for uuid, events := range f.events {
		arrived := []backoff.Tier{0, first, second}[:len(events)]
		for i, e := range events {
			assert.Equal(t, arrived[i], e.Arrived, "message %s, delivery %d", uuid, i)
			assert.Equal(t, []any{f.Queue("billing"), "billing"}, []any{e.Topic, e.Handler})
		}
	}
	for _, p := range f.published {
		assert.Positive(t, p.Took)
		require.NotNil(t, p.Context)
		if p.Copy {
			assert.Contains(t, []string{"100ms", "1s", "dead"}, strings.Split(p.Topic, ".")[0])
		} else {
			assert.Equal(t, f.Queue("billing"), p.Topic)
		}
	}
	s := f.Health().Subscriptions[0]
	assert.EqualValues(t, messages+copies-messages/4, s.Deliveries, "each message, and each copy on a tier")
	assert.Zero(t, s.Redeliveries)
	assert.Zero(t, s.Reconnects)
	assert.Equal(t, 16, s.Concurrency)
	assert.Equal(t, "rabbitmq", f.observed.System)
	assert.Equal(t, f.Health().Links[0].Since, f.observed.Health().Links[0].Since)
}

func TestFeedCountsReconnectsAndRedeliveries(t *testing.T) {
	t.Parallel()
	name := broker.Name(t, "named")
	f := openFeed(t, func(b *config.Config) {
		b.AMQP.Connection.AmqpConfig = &amqp091.Config{Properties: amqp091.Table{"connection_name": name},
			Heartbeat: 10 * time.Second}
	})
	begun, goOn := make(chan string, 100), make(chan struct{})
	done := testapp.NewLedger()
	f.handle("billing", func(msg *message.Message) error {
		begun <- msg.UUID
		<-goOn
		done.Add(msg.UUID)
		return nil
	}, retry.Options{Concurrency: 5})
	f.Run()
	f.Publish(f.Queue("billing"), testapp.IDs(5)...)
	for range 5 {
		broker.Receive(t, begun, "a message is in flight")
	}
	testapp.Eventually(t, func() bool { return f.Health().Subscriptions[0].InFlight == 5 }, "all are in flight")
	s := f.Health().Subscriptions[0]
	assert.EqualValues(t, []uint64{5, 0, 0}, []uint64{s.Deliveries, s.Redeliveries, s.Reconnects})
	assert.Equal(t, 5, s.Concurrency)
	assert.Equal(t, []int{0, 0}, []int{f.link("consuming").Reconnects, f.link("publishing").Reconnects})

	management := broker.Management(t)
	var own []string
	testapp.Eventually(t, func() bool {
		connections, err := management.ListConnections()
		own = nil
		for _, c := range connections {
			if c.ClientProperties["connection_name"] == name {
				own = append(own, c.Name)
			}
		}
		return err == nil && len(own) == 2
	}, "the management API has both connections")
	for _, connection := range own {
		_, err := management.CloseConnection(connection)
		require.NoError(t, err)
	}
	testapp.Eventually(t, func() bool {
		return f.link("consuming").Reconnects == 1 && f.link("publishing").Reconnects == 1
	}, "both connect again")
	close(goOn)
	testapp.Eventually(t, func() bool { return f.Health().Subscriptions[0].Redeliveries >= 5 }, "the messages come again")
	done.Wait(t, 5, feedSoon)
	s = f.Health().Subscriptions[0]
	assert.EqualValues(t, 1, s.Reconnects)
	assert.EqualValues(t, 10, s.Deliveries)
	assert.EqualValues(t, 5, s.Redeliveries)
}

// Each result of a publisher, for messages of the app and for copies.
func TestFeedHasTheResultsOfThePublishers(t *testing.T) {
	t.Parallel()
	one := func(uuid string) *message.Message { return message.NewMessage(uuid, []byte("order")) }

	t.Run("returned", func(t *testing.T) {
		t.Parallel()
		f := openFeed(t)
		err := f.Publisher().Publish(f.Queue("without-queue"), one("1"), one("2"))
		require.ErrorIs(t, err, publish.ErrUnroutable)
		assert.Equal(t, map[string]int{"app returned": 2}, f.results())
	})
	t.Run("copy returned", func(t *testing.T) {
		t.Parallel()
		declared := openFeed(t)
		declared.handle("billing", func(*message.Message) error { return nil })
		declared.Run()
		b := feedConfig(t, func(c *config.Config) { c.Prefix = declared.Name })
		b.VerifyOnly = true
		f := connectFeed(t, b)
		require.NoError(t, declared.Router.Close())
		f.handle("billing", func(*message.Message) error { return errFeed })
		f.Run()
		testapp.Delete(t, f.Queue("billing")+"."+f.Name+".100ms")
		f.Publish(f.Queue("billing"), "1")
		testapp.Eventually(t, func() bool { return f.results()["copy confirmed"] > 0 }, "another tier takes the copy")
		assert.Equal(t, 1, f.results()["copy returned"])
	})
	t.Run("nacked", func(t *testing.T) {
		t.Parallel()
		f := openFeed(t, func(b *config.Config) {
			b.Policy.Schedule, b.TierArguments = backoff.Constant(time.Hour, 1), amqp091.Table{"x-max-length": int64(1)}
		})
		f.handle("billing", func(*message.Message) error { return errFeed })
		f.Run()
		for _, id := range testapp.IDs(10) { // the tier knows of its limit a moment after it is full
			f.Publish(f.Queue("billing"), id)
		}
		testapp.Eventually(t, func() bool {
			r := f.results()
			return r["copy confirmed"] == 10 && r["copy nacked"] > 0
		}, "the tier is full, and the others are dead letters")
		testapp.Eventually(t, func() bool { return len(f.outcomes()) == 10 }, "all have their outcome")
		dead := 0
		for _, outcomes := range f.outcomes() {
			if slices.Contains(outcomes, retry.DeadLettered) {
				dead++
			}
		}
		assert.Equal(t, dead, f.results()["copy nacked"])
	})
	t.Run("unconfirmed, failed", func(t *testing.T) {
		t.Parallel()
		proxy, uri := broker.Proxy(t)
		f := openFeed(t, func(b *config.Config) { b.AMQP.Connection.AmqpURI = uri })
		f.handle("billing", func(*message.Message) error { return nil })
		f.Run()
		f.Publish(f.Queue("billing"), "1")
		_, err := proxy.Toxics.AddToxicJson(strings.NewReader(
			`{"name":"hold","type":"timeout","stream":"downstream","toxicity":1,"attributes":{"timeout":0}}`))
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.Error(t, f.Publisher().Publish(f.Queue("billing"), message.NewMessageWithContext(ctx, "2", nil)))
		assert.Equal(t, map[string]int{"app confirmed": 1, "app unconfirmed": 1}, f.results())
		proxy.Stop()
		testapp.Eventually(t, func() bool { return !f.link("publishing").Connected }, "the connection is lost")
		require.ErrorIs(t, f.Publisher().Publish(f.Queue("billing"), one("3"), one("4")), publish.ErrNotConnected)
		assert.Equal(t, map[string]int{"app confirmed": 1, "app unconfirmed": 1, "app failed": 2}, f.results())
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		f := openFeed(t)
		f.handle("billing", func(*message.Message) error { return nil })
		f.Run()
		large := one("2")
		large.Metadata.Set("large", strings.Repeat("x", 1<<20)) // more than a frame
		require.ErrorIs(t, f.Publisher().Publish(f.Queue("billing"), one("1"), large), publish.ErrRefused)
		assert.Equal(t, map[string]int{"app refused": 1, "app failed": 1}, f.results(), "none was sent")
	})
}
