package backends

import (
	"strings"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tieredretry/watermill-retry/backends/servers"
)

// kafkaRequests records what the brokers were asked for.
type kafkaRequests struct {
	mu       sync.Mutex
	acks     map[string]int16 // by topic, of its last produce request
	replicas map[string]int16 // by topic, of its create request
	creates  int
}

func (r *kafkaRequests) observe(request kmsg.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch request := request.(type) {
	case *kmsg.ProduceRequest:
		for _, topic := range request.Topics {
			r.acks[topic.Topic] = request.Acks
		}
	case *kmsg.CreateTopicsRequest:
		for _, topic := range request.Topics {
			r.replicas[topic.Topic] = topic.ReplicationFactor
			r.creates++
		}
	}
}

// TestKafkaSurvivesALeader runs a retry on three brokers. A message that only its leader has is lost with the leader.
func TestKafkaSurvivesALeader(t *testing.T) {
	t.Parallel()
	requests := &kafkaRequests{acks: map[string]int16{}, replicas: map[string]int16{}}
	cluster, err := servers.KafkaCluster(t.Context(), 3, requests.observe)
	require.NoError(t, err)
	t.Cleanup(cluster.Stop)
	backend := Kafka(cluster.URL, watermill.NopLogger{})
	retryTwo(t, backend, soon)()

	const everyInSyncReplica, clusterDefault = -1, -1
	topics := []string{"orders", "retry.100ms", "retry.return.bill"}
	requests.mu.Lock()
	defer requests.mu.Unlock()
	for _, topic := range topics {
		assert.Contains(t, requests.acks, topic)
		assert.Contains(t, requests.replicas, topic)
	}
	for topic, acks := range requests.acks {
		assert.EqualValues(t, everyInSyncReplica, acks, "acks of a produce request for %s", topic)
	}
	for topic, factor := range requests.replicas {
		assert.EqualValues(t, clusterDefault, factor, "replication factor of the create request for %s", topic)
	}
}

func TestKafkaCreatesOnlyMissingTopics(t *testing.T) {
	t.Parallel()
	requests := &kafkaRequests{acks: map[string]int16{}, replicas: map[string]int16{}}
	cluster, err := servers.KafkaCluster(t.Context(), 3, requests.observe)
	require.NoError(t, err)
	t.Cleanup(cluster.Stop)
	for range 2 {
		brokers := kafkaBrokers{strings.Split(cluster.URL, ","), watermill.NopLogger{}}
		subscriber := &kafkaSubscriber{kafkaBrokers: brokers, group: "billing"}
		_, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, subscriber.Close())
	}
	requests.mu.Lock()
	created := requests.creates
	requests.mu.Unlock()
	assert.Equal(t, 1, created)

	admin, err := sarama.NewClusterAdmin(strings.Split(cluster.URL, ","), kafkaConsumer())
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	found, err := admin.DescribeTopics([]string{"orders"})
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Len(t, found[0].Partitions, 1)
	assert.Len(t, found[0].Partitions[0].Replicas, 3, "the default of the cluster")
}
