package conformance

import (
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestKafkaLooksBehindWhatIsSettled: settled messages stay on a tier until they are deleted, and for its retention
// where the client may not delete them. They are not overdue.
func TestKafkaLooksBehindWhatIsSettled(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 0)
	tier := k.tier("3s")
	k.make(tier, 2)
	now := time.Now().Truncate(time.Millisecond)
	for i, due := range []time.Duration{-time.Hour, -time.Minute, 2 * time.Hour, time.Hour} {
		metadata := message.Metadata{}
		retry.Record{Failures: 1, DueAt: now.Add(due)}.Write(metadata)
		msg := &sarama.ProducerMessage{Topic: tier, Partition: int32(i % 2), Value: sarama.StringEncoder("{}")}
		for key, value := range metadata {
			msg.Headers = append(msg.Headers, kafkaHeader(key, value))
		}
		k.send(msg)
	}
	look := func() operate.Waiting {
		all, err := operate.Of(k.letters()).Waiting(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0]
	}
	first := look()
	assert.Equal(t, []int{4, 2}, []int{first.Retries, first.Overdue})
	assert.True(t, first.NextDue.Equal(now.Add(-time.Hour)), first.NextDue)

	client, err := sarama.NewClient(k.brokers, sarama.NewConfig())
	require.NoError(t, err)
	defer func() { _ = client.Close() }()
	offsets, err := sarama.NewOffsetManagerFromClient("retry-relay."+tier, client)
	require.NoError(t, err)
	for partition := range int32(2) {
		one, err := offsets.ManagePartition(tier, partition)
		require.NoError(t, err)
		one.MarkOffset(1, "")
	}
	offsets.Commit()
	require.NoError(t, offsets.Close())
	then := look()
	assert.Equal(t, []int{2, 0}, []int{then.Retries, then.Overdue})
	assert.True(t, then.NextDue.Equal(now.Add(time.Hour)), then.NextDue)
}
