package kafkaretry

import (
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

func valid() Config {
	return Config{
		Brokers: []string{"localhost:9092"}, Group: "billing",
		Policy: retry.Policy{Schedule: backoff.Schedule{time.Second}},
	}
}

func TestConfigReportsAllFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, valid().Validate())
	client := sarama.NewConfig()
	client.Net.MaxOpenRequests = 0
	err := Config{Sarama: client, RetiredSchedule: backoff.Schedule{-1}, Prefix: "a/b"}.Validate()
	for _, field := range []string{"Brokers", "Sarama", "Group", "Policy", "RetiredSchedule", "Prefix"} {
		assert.ErrorContains(t, err, field)
	}
	_, err = Connect(Config{}, nil)
	require.ErrorContains(t, err, "invalid kafkaretry.Config")
	_, err = Letters(Config{}, nil)
	require.ErrorContains(t, err, "Brokers")
	assert.NotContains(t, err.Error(), "Policy", "letters need none")
}

// TestSettingsThatPreventLosses: the app's own settings do not turn them off, and are not modified.
func TestSettingsThatPreventLosses(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]*sarama.Config{"none": nil, "the app's": sarama.NewConfig()} {
		c := valid()
		if c.Sarama = client; client != nil {
			client.Producer.RequiredAcks = sarama.NoResponse
			client.Consumer.Offsets.Initial = sarama.OffsetNewest
			client.Net.TLS.Enable = true
			client.Consumer.Group.Session.Timeout = 20 * time.Second
		}
		producer, consumer := c.producer(), c.consumer()
		assert.Equal(t, sarama.WaitForAll, producer.Producer.RequiredAcks, name)
		assert.True(t, producer.Producer.Return.Successes && producer.Producer.Return.Errors, name)
		assert.Equal(t, sarama.OffsetOldest, consumer.Consumer.Offsets.Initial, name)
		assert.True(t, consumer.Consumer.Return.Errors, name)
		assert.Equal(t, time.Second, consumer.Consumer.Group.Heartbeat.Interval, name)
		for _, own := range []*sarama.Config{c.copies(), c.alone(), c.tier(), c.asks()} {
			assert.False(t, own.Metadata.AllowAutoTopicCreation, "such a topic would have the cluster's retention")
			require.NoError(t, own.Validate())
		}
		assert.Less(t, consumer.Consumer.Group.Rebalance.Timeout, consumer.Net.ReadTimeout, "else sarama gives up a join")
		if client == nil {
			assert.Equal(t, 6*time.Second, consumer.Consumer.Group.Session.Timeout)
			assert.Equal(t, 200*time.Millisecond, consumer.Consumer.Offsets.AutoCommit.Interval)
			continue
		}
		assert.Equal(t, 20*time.Second, consumer.Consumer.Group.Session.Timeout, "the app's own")
		assert.True(t, producer.Net.TLS.Enable && consumer.Net.TLS.Enable)
		assert.Equal(t, sarama.NoResponse, client.Producer.RequiredAcks)
		assert.Equal(t, sarama.OffsetNewest, client.Consumer.Offsets.Initial)
	}
}

// TestSettingsOfTiers: the app's own strategy may be cooperative, also in the older one of sarama's two fields.
func TestSettingsOfTiers(t *testing.T) {
	t.Parallel()
	c := valid()
	c.Sarama = sarama.NewConfig()
	sticky := sarama.NewBalanceStrategySticky()
	own := &c.Sarama.Consumer.Group.Rebalance
	own.GroupStrategies = []sarama.BalanceStrategy{sticky}
	own.Strategy = sticky
	c.Sarama.Consumer.Offsets.AutoCommit.Enable = false
	older, tier := c.tier().Consumer.Group.Rebalance.Strategy, c.tier().Consumer.Group.Rebalance.GroupStrategies
	assert.Nil(t, older)
	assert.True(t, c.tier().Consumer.Offsets.AutoCommit.Enable, "else nothing commits")
	assert.False(t, c.consumer().Consumer.Offsets.AutoCommit.Enable, "watermill-kafka commits")
	require.Len(t, tier, 1)
	assert.Equal(t, sarama.RangeBalanceStrategyName, tier[0].Name())
	assert.Equal(t, sticky, own.GroupStrategies[0], "the app's own is not modified")
}

// TestNamesThatKafkaRefuses are refused when a handler is added, and by each publish.
func TestNamesThatKafkaRefuses(t *testing.T) {
	t.Parallel()
	c, copies := newCluster(valid(), nil), &copies{}
	for _, topic := range []string{"orders", "a.b_c-D9", strings.Repeat("o", 249)} {
		require.NoError(t, copies.CheckTopic(topic))
	}
	for _, topic := range []string{".", "..", "a/b", "a b", "ä", "a\x00", strings.Repeat("o", 250)} {
		require.ErrorContains(t, copies.CheckTopic(topic), "Kafka refuses the topic name", topic)
		require.ErrorContains(t, copies.Publish(topic), "Kafka refuses the topic name", topic)
		require.ErrorContains(t, publisher{}.Publish(topic), "Kafka refuses the topic name", topic)
		_, err := (&subscriber{cluster: c}).Subscribe(t.Context(), topic)
		require.ErrorContains(t, err, "Kafka refuses the topic name", topic)
	}
	require.Error(t, publisher{}.Publish(""))
}

func TestTopicsStayLongerThanTheLongestDelay(t *testing.T) {
	t.Parallel()
	c := valid()
	c.Policy.Schedule = backoff.Schedule{time.Second, time.Hour}
	c.Policy.ExtraTiers = []time.Duration{2 * time.Hour}
	c.RetiredSchedule = backoff.Schedule{10 * 24 * time.Hour}
	longest := newCluster(c, nil).longest
	assert.NotContains(t, deadTopic(0).ConfigEntries, "max.message.bytes", "the cluster's own")
	assert.Equal(t, "1065536", *deadTopic(1_000_000).ConfigEntries["max.message.bytes"])
	assert.Equal(t, 10*24*time.Hour, longest)
	assert.Equal(t, "1468800000", *waitingTopic(1, longest, 0).ConfigEntries["retention.ms"])
	assert.Equal(t, "-1", *deadTopic(0).ConfigEntries["retention.ms"])
	for _, detail := range []*sarama.TopicDetail{waitingTopic(1, longest, 0), deadTopic(0)} {
		assert.EqualValues(t, clusterDefault, detail.ReplicationFactor)
		assert.Equal(t, "-1", *detail.ConfigEntries["retention.bytes"])
		assert.Equal(t, "delete", *detail.ConfigEntries["cleanup.policy"])
	}
}
