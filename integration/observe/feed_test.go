package observe_test

import (
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

	byFailures := [][]retry.Outcome{
		{retry.Processed}, {retry.Retried, retry.Recovered}, {retry.Retried, retry.Retried, retry.Recovered},
		{retry.Retried, retry.Retried, retry.DeadLettered},
	}
	want, copies := map[string][]retry.Outcome{}, 0
	for i, uuid := range testapp.IDs(messages) {
		want[uuid] = byFailures[i%4]
		copies += i % 4
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
