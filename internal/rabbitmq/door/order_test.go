package door

import (
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestWhatAnOrderedHandlerCannotHave: each refusal names the field, its value and the reason. The policy is that of the
// connection or the handler's own.
func TestWhatAnOrderedHandlerCannotHave(t *testing.T) {
	key := func(*message.Message) string { return "" }
	schedule := backoff.Schedule{time.Second}
	for name, row := range map[string]struct {
		policy  retry.Policy
		consume app.Consume
		want    []string // none: it is not refused
	}{
		"a tier group": {policy: retry.Policy{Schedule: schedule, TierGroup: "quiet"},
			want: []string{`Policy.TierGroup is "quiet"`, "no message waits on a tier", "leave it out"}},
		"extra tiers": {policy: retry.Policy{Schedule: schedule, ExtraTiers: []time.Duration{time.Minute}},
			want: []string{"Policy.ExtraTiers has [1m0s]", "every delay is possible without a tier", "leave it out"}},
		"a priority": {consume: app.Consume{Arguments: amqp091.Table{"x-priority": 7}},
			want: []string{"AMQP.Consume.Arguments has x-priority 7", "would stop the one that has the messages"}},
		"exclusive": {consume: app.Consume{Exclusive: true},
			want: []string{"AMQP.Consume.Exclusive is true", "all processes consume a queue"}},
		"all of them": {policy: retry.Policy{Schedule: schedule, TierGroup: "quiet", ExtraTiers: schedule},
			consume: app.Consume{Exclusive: true, Arguments: amqp091.Table{"x-priority": 7}},
			want:    []string{"Policy.TierGroup", "Policy.ExtraTiers", "x-priority", "AMQP.Consume.Exclusive"}},
		"what it can have": {policy: retry.Policy{Schedule: schedule, Jitter: 0.2, Breaker: &retry.Breaker{}},
			consume: app.Consume{Tag: "billing", NoLocal: true, Arguments: amqp091.Table{"x-other": 7}}},
	} {
		if row.policy.Schedule == nil {
			row.policy.Schedule = schedule
		}
		c := &core{app: app.Config{Consume: row.consume}, policy: row.policy}
		ordered := retry.Options{Order: retry.Order{Key: key, Partitions: 4}}
		own := ordered
		own.Policy = &row.policy
		require.NoError(t, row.policy.Validate(), name)
		assert.NoError(t, c.checkOrder(retry.Options{Policy: &row.policy, Order: retry.Order{Key: key}}),
			"%s, without partitions", name)
		if row.want == nil {
			assert.NoError(t, c.checkOrder(own), name)
			continue
		}
		for _, options := range []retry.Options{ordered, own} {
			_, err := (&Connection{core: c}).newHandler("billing", []retry.Options{options})
			for _, part := range append(row.want, `"billing"`) {
				assert.ErrorContains(t, err, part, name)
			}
		}
	}
}

// TestBrokersThatStopSingleConsumers are refused before anything is declared for an ordered handler, and for no other.
func TestBrokersThatStopSingleConsumers(t *testing.T) {
	c := &core{
		inspector: workqueue.New(workqueue.Config{}), prefix: naming.Default, verifyOnly: true,
		app: app.Config{Queue: app.Queue{Durable: true}}, queues: &queues{},
	}
	tiers := backoff.Schedule{time.Second}.Tiers()
	require.NoError(t, c.queues.add("orders", "orders", "", nil, order{partitions: 4, prefetch: 512}))
	require.NoError(t, c.queues.add("mails", "mails", "", tiers, order{}))
	d := newDeclarer(c, nil, nil, watermill.NopLogger{})
	defer d.close()
	declare := func(version, queue string) error {
		broker := fakeBroker{1, func() (*amqp091.Channel, error) { return nil, errNoChannel }, version}
		return d.declare(&subscriber.Declaration{Reopening: wire.Reopening{On: broker}, Broker: broker},
			app.Subscription{Topic: queue, Queue: queue, Logger: watermill.NopLogger{}})
	}
	err := declare("4.3.5", "orders")
	require.ErrorContains(t, err, "RabbitMQ 4.3.5 can stop to deliver to a single active consumer for ever")
	require.ErrorContains(t, err, "update it to 4.3.6 or later")
	require.ErrorIs(t, declare("4.3.6", "orders"), errNoChannel)
	require.ErrorIs(t, declare("4.3.5", "mails"), errNoChannel)
}

// TestAnOrderedMessageWaitsUntilItIsDue, where it is: no copy of it is published.
func TestAnOrderedMessageWaitsUntilItIsDue(t *testing.T) {
	due := time.Now().Add(time.Minute).UTC().Truncate(time.Millisecond)
	for name, row := range map[string]struct {
		tier    backoff.Tier
		blocked bool
	}{"a retry": {tier: backoff.Tier(time.Second)}, "a blocked key": {blocked: true}} {
		msg := message.NewMessage("1", nil)
		msg.SetContext(msgctx.NewContext(t.Context(), &msgctx.Subscription{}))
		record := retry.Record{Failures: 2, Topic: "orders", DueAt: due}
		if row.blocked {
			record.DueAt = time.Time{}
		}
		record.Write(msg.Metadata)
		to, err := orderedBackend{}.Publish(backend.Copy{Message: msg, Queue: "orders", Tier: row.tier, Blocked: row.blocked})
		require.NoError(t, err, name)
		assert.Equal(t, backend.Destination{Queue: "orders"}, to, name)
		assert.Equal(t, &msgctx.Again{Metadata: msg.Metadata, Due: record.DueAt, Blocked: row.blocked},
			msgctx.Lookup(msg).Again, name)
	}
}

// TestMessagesOfAKeyHaveOnePartition, and those without a key come to the same one each time.
func TestMessagesOfAKeyHaveOnePartition(t *testing.T) {
	o := order{partitions: 16, key: func(msg *message.Message) string { return msg.Metadata["customer"] }}
	seen := map[int]bool{}
	for i := range 64 {
		msg := message.NewMessage(watermill.NewUUID(), []byte{byte(i)})
		withoutKey, key, err := o.partitionOf(msg)
		require.NoError(t, err)
		assert.Empty(t, key)
		assert.Equal(t, naming.PartitionOf(msg.UUID, 16), withoutKey)
		msg.Metadata["customer"] = "7"
		partition, key, err := o.partitionOf(msg)
		require.NoError(t, err)
		assert.Equal(t, "7", key)
		assert.Equal(t, naming.PartitionOf("7", 16), partition)
		msg.UUID, msg.Metadata["customer"] = "", ""
		partition, _, err = o.partitionOf(msg)
		require.NoError(t, err)
		assert.Equal(t, naming.PartitionOf(string(msg.Payload), 16), partition)
		seen[withoutKey] = true
	}
	assert.Greater(t, len(seen), 4, "they are spread")
}

func TestNoKeyOccursTwiceInARun(t *testing.T) {
	for name, c := range map[string]struct {
		keys []string
		ends []int
	}{
		"one":              {[]string{"a"}, []int{1}},
		"distinct":         {[]string{"a", "b", "c"}, []int{3}},
		"the same":         {[]string{"a", "a", "a"}, []int{1, 2, 3}},
		"none":             {[]string{"", "", ""}, []int{3}},
		"again":            {[]string{"a", "b", "a", "b", "c", "b"}, []int{2, 5, 6}},
		"of an earlier":    {[]string{"a", "b", "b", "a", "c"}, []int{2, 5}},
		"between no keys":  {[]string{"a", "", "a", ""}, []int{2, 4}},
		"after an earlier": {[]string{"a", "b", "b", "c", "a", "a"}, []int{2, 5, 6}},
	} {
		assert.Equal(t, c.ends, slices.Collect(runs(c.keys)), name)
	}
}
