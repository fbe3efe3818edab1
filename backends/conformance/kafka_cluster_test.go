package conformance

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backoff"
)

// leaders returns how many partitions of the topics each broker leads, -1 where none does, and whether all replicas are
// in sync. A broker that was killed may be asked: then none leads.
func (k *kafkaApp) leaders(topics ...string) (leaders map[int32]int, inSync bool) {
	k.t.Helper()
	config := sarama.NewConfig()
	config.Version = sarama.V2_4_0_0
	admin, err := sarama.NewClusterAdmin(k.brokers[:1], config)
	require.NoError(k.t, err)
	defer func() { _ = admin.Close() }()
	found, err := admin.DescribeTopics(topics)
	if err != nil {
		return map[int32]int{-1: 1}, false
	}
	leaders, inSync = map[int32]int{}, true
	for _, topic := range found {
		for _, p := range topic.Partitions {
			leaders[p.Leader]++
			inSync = inSync && len(p.Isr) == 3
		}
	}
	return leaders, inSync
}

// TestKafkaSurvivesItsBrokers: brokers that lead partitions are killed one after the other, while messages fail and come
// back. Nothing is lost that a Publish has taken. While one replica is alone, a Publish takes nothing.
func TestKafkaSurvivesItsBrokers(t *testing.T) {
	t.Parallel()
	brokers, nodes := startKafkaCluster(t, 3, sarama.NewConfig())
	k := kafkaOn(t, brokers)
	k.make(k.orders, 6)
	seen := newLedger()
	config := k.config(time.Second)
	config.Policy.MaxHold = time.Minute
	app := k.connect(config).bills(seen.failing(1))
	app.publish("first")
	seen.await(t, 1, 1)
	for _, topic := range []string{k.orders, k.tier("1s"), k.back(), k.dead(), k.name + ".dead.unknown"} {
		for _, p := range k.describe(topic).Partitions {
			assert.Len(t, p.Replicas, 3, "%s is made with the replicas of the cluster", topic)
		}
	}
	all := []string{k.orders, k.tier("1s"), k.back()}
	whole := func() bool { _, inSync := k.leaders(all...); return inSync }
	taken, stop := flood(func(id string) bool {
		return app.Publisher().Publish(k.orders, message.NewMessage(id, []byte("order"))) == nil
	})
	for i, node := range nodes[1:] {
		seen.await(t, taken()+100, 1)
		leaders, _ := k.leaders(all...)
		require.Positive(t, leaders[int32(i+2)], "the broker leads partitions")
		node.Kill()
		wait.Until(t, func() bool { leaders, _ := k.leaders(all...); return leaders[int32(i+2)] == 0 && leaders[-1] == 0 },
			"others lead them")
		seen.await(t, taken()+100, 1)
		require.NoError(t, node.Restart(t.Context()))
		wait.Until(t, whole, "all replicas are in sync")
	}
	stop()
	seen.await(t, taken()+1, 1)
	t.Logf("%d messages, %d came twice", taken(), seen.duplicates())
	seen.neverEarly(t, monotonic, time.Second)

	nodes[1].Kill()
	nodes[2].Kill()
	wait.Until(t, func() bool { leaders, _ := k.leaders(k.orders); return leaders[1] == 6 }, "one leads all partitions")
	require.Error(t, app.Publisher().Publish(k.orders, message.NewMessage("alone", nil)))
	for _, node := range nodes[1:] {
		require.NoError(t, node.Restart(t.Context()))
	}
	wait.Until(t, whole, "all replicas are in sync")
	app.publish("last but one", "last but two")
	wait.Until(t, func() bool { return len(seen.of("last but one")) > 1 && len(seen.of("last but two")) > 1 }, "all goes on")
}

// TestKafkaPartitionsAreAdded to all topics while messages wait: nothing is lost, and the new partitions are read.
func TestKafkaPartitionsAreAdded(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	seen := newLedger()
	config := k.config(3*time.Second, time.Second)
	config.Sarama = sarama.NewConfig()
	config.Sarama.Version = sarama.V2_2_0_0
	config.Sarama.Metadata.RefreshFrequency = time.Second // 10 minutes by default
	app := k.connect(config).bills(seen.failing(2))
	app.publish(ids(50)...)
	seen.await(t, 50, 0)
	for _, topic := range []string{k.orders, k.back(), k.tier("3s"), k.tier("1s")} {
		require.NoError(t, k.admin.CreatePartitions(topic, 4, nil, false))
	}
	for i := range 40 {
		k.send(&sarama.ProducerMessage{
			Topic: k.orders, Partition: int32(i % 4), Value: sarama.StringEncoder("order"),
			Headers: []sarama.RecordHeader{{Key: []byte("_watermill_message_uuid"), Value: fmt.Appendf(nil, "new %d", i)}},
		})
	}
	seen.await(t, 90, 2)
	seen.neverEarly(t, monotonic, 3*time.Second)
}

// send publishes to the partition of the message.
func (k *kafkaApp) send(msg *sarama.ProducerMessage) {
	k.t.Helper()
	config := sarama.NewConfig()
	config.Producer.Return.Successes, config.Producer.RequiredAcks = true, sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = 100 << 20
	producer, err := sarama.NewSyncProducer(k.brokers, config)
	require.NoError(k.t, err)
	defer func() { require.NoError(k.t, producer.Close()) }()
	_, _, err = producer.SendMessage(msg)
	require.NoError(k.t, err)
}

func kafkaHeader(key, value string) sarama.RecordHeader {
	return sarama.RecordHeader{Key: []byte(key), Value: []byte(value)}
}

// TestKafkaTransactions: what another producer has aborted is not handled, and what it has committed is.
func TestKafkaTransactions(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	config := sarama.NewConfig()
	config.Producer.Idempotent, config.Producer.RequiredAcks, config.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	config.Producer.Transaction.ID, config.Producer.Return.Successes = k.name, true
	producer, err := sarama.NewSyncProducer(k.brokers, config)
	require.NoError(t, err)
	defer func() { require.NoError(t, producer.Close()) }()
	for id, end := range map[string]func() error{"aborted": producer.AbortTxn, "committed": producer.CommitTxn} {
		require.NoError(t, producer.BeginTxn())
		for i := range 10 {
			_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: k.orders, Value: sarama.StringEncoder("order"),
				Headers: []sarama.RecordHeader{kafkaHeader("_watermill_message_uuid", fmt.Sprint(id, i))}})
			require.NoError(t, err)
		}
		require.NoError(t, end())
	}
	seen := newLedger()
	app := k.app(100 * time.Millisecond).bills(seen.failing(1))
	app.publish("behind")
	seen.await(t, 11, 1)
	for id := range seen.all() {
		assert.False(t, strings.HasPrefix(id, "aborted"), id)
	}
}

// TestKafkaLag: what the group of a topic has not committed is what is not settled, as kafka-consumer-groups.sh and
// Health show it.
func TestKafkaLag(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	proceed := make(chan struct{})
	app := k.app(time.Second).bills(func(msg *message.Message) error {
		if msg.UUID == "slow" {
			<-proceed
		}
		return backoff.Permanent(errDown)
	})
	lag := func() int64 {
		offsets, err := k.admin.ListConsumerGroupOffsets("billing."+k.orders, map[string][]int32{k.orders: {0}})
		require.NoError(t, err)
		return int64(k.stored(k.orders)) - max(0, offsets.GetBlock(k.orders, 0).Offset)
	}
	ofHealth := func() int { return app.Health().Subscriptions[0].Backlog }
	app.publish("1", "2", "slow", "4")
	wait.Until(t, func() bool { return lag() == 2 && ofHealth() == 2 }, "the message in flight and the one behind it")
	close(proceed)
	wait.Until(t, func() bool { return lag() == 0 && ofHealth() == 0 }, "no message")
}

// TestKafkaFull: a broker whose disk is full while copies are published to a tier ends itself. Messages are held until it
// has room and runs again, and none is lost.
func TestKafkaFull(t *testing.T) {
	t.Parallel()
	const room, messages = 16, 24 // MiB, and messages of almost 1 MiB each
	node, err := servers.FullKafka(interrupted, room)
	require.NoError(t, err)
	keep(node)
	t.Cleanup(node.Stop)
	k := kafkaOn(t, []string{node.URL})
	k.make(k.orders, 4) // a tier has one partition
	seen, proceed := newLedger(), make(chan struct{})
	app := k.app(3 * time.Second).bills(func(msg *message.Message) error {
		<-proceed
		return seen.failing(1)(msg)
	})
	body := []byte(strings.Repeat("x", 1_000_000))
	for _, id := range ids(messages) {
		require.NoError(t, app.Publisher().Publish(k.orders, message.NewMessage(id, body)))
	}
	close(proceed)
	wait.Until(t, func() bool {
		connection, err := net.Dial("tcp", node.URL)
		if err == nil {
			_ = connection.Close()
		}
		return err != nil
	}, "the broker ends itself")
	require.Error(t, app.Publisher().Publish(k.orders, message.NewMessage("refused", body)))
	wait.Until(t, func() bool { return app.Health().Ready() != nil }, "Health says it")
	assert.Less(t, seen.reached(1), messages)
	require.NoError(t, node.Restart(t.Context()))
	seen.await(t, messages, 1)
	seen.neverEarly(t, monotonic, 3*time.Second)
	t.Log(seen.duplicates(), "calls more than necessary")
	wait.Until(t, func() bool { return app.Health().Ready() == nil }, "Health says that it is over")
}
