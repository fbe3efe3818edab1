package conformance

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// order publishes a message of so many bytes, which can be more than the client of the app publishes.
func (k *kafkaApp) order(id string, bytes int) {
	k.send(&sarama.ProducerMessage{
		Topic: k.orders, Value: sarama.StringEncoder(strings.Repeat("x", bytes)),
		Headers: []sarama.RecordHeader{kafkaHeader("_watermill_message_uuid", id)},
	})
}

// setting returns a setting of a topic, which is empty where the topic is not there.
func (k *kafkaApp) setting(topic, name string) string {
	k.t.Helper()
	entries, err := k.admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name},
	})
	if err != nil || len(entries) != 1 {
		return ""
	}
	return entries[0].Value
}

// TestKafkaLargeMessages: the topics of the retries take the copies of all messages that the app's topic takes. Where a
// tier takes one not, it is a dead letter, and the next message is handled.
func TestKafkaLargeMessages(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 0)
	k.make(k.orders, 1, "max.message.bytes", "4000000")
	seen := newLedger()
	app := k.app(time.Second).bills(seen.failing(1))
	k.order("large", 4_000_000-1000)
	wait.Until(t, func() bool { return len(seen.of("large")) == 2 }, "it is retried")
	k.limit(k.tier("1s"), 2_000_000)
	k.order("too large", 3_000_000)
	k.order("next", 10)
	wait.Until(t, func() bool { return len(seen.of("next")) == 2 }, "the next message is handled")
	found := browse(t, k.letters(), k.dead())
	require.Len(t, found, 1)
	assert.Equal(t, "too large", found[0].ID)
	assert.Equal(t, retry.DeadReasonTooLarge, found[0].Record.DeadReason)
	assert.Len(t, seen.of("too large"), 1)
	app.stop()
	require.ErrorContains(t, k.app(time.Second).handle("bill", k.orders, nothing).router.Run(t.Context()),
		"its max.message.bytes is 2000000, and that of topic \""+k.orders+"\" is 4000000")
}

// TestKafkaMessagesThatAreTooLargeTogether are not too large.
func TestKafkaMessagesThatAreTooLargeTogether(t *testing.T) {
	t.Parallel()
	const messages = 16
	k := startKafka(t, messages)
	all := make(chan struct{}, messages)
	seen, proceed := newLedger(), make(chan struct{})
	k.app(time.Second).bills(func(msg *message.Message) error {
		if err := seen.failing(1)(msg); err != nil {
			all <- struct{}{}
			<-proceed
			return err
		}
		return nil
	})
	k.limit(k.tier("1s"), 100_000)
	for i, id := range ids(messages) {
		k.send(&sarama.ProducerMessage{
			Topic: k.orders, Partition: int32(i), Value: sarama.StringEncoder(strings.Repeat("x", 60_000)),
			Headers: []sarama.RecordHeader{kafkaHeader("_watermill_message_uuid", id)},
		})
	}
	for range messages {
		wait.For(t, all, "all are in flight")
	}
	close(proceed)
	seen.await(t, messages, 1)
	assert.Empty(t, browse(t, k.letters(), k.dead()))
}

// TestKafkaDeletedTopics: a topic of the retries that is deleted while the app runs is made again as it was, and takes
// what comes next.
func TestKafkaDeletedTopics(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	seen := newLedger()
	app := k.app(time.Second).bills(func(msg *message.Message) error {
		if err := seen.failing(1)(msg); strings.HasPrefix(msg.UUID, "dead") {
			return backoff.Permanent(errDown)
		} else {
			return err
		}
	})
	app.publish("1", "dead 1")
	seen.await(t, 1, 1)
	wait.Until(t, func() bool { return k.stored(k.dead()) == 1 }, "both topics are used")
	for _, topic := range []string{k.dead(), k.back(), k.tier("1s")} {
		retention := k.setting(topic, "retention.ms")
		require.NoError(t, k.admin.DeleteTopic(topic))
		app.publish("after "+topic, "dead "+topic)
		wait.Until(t, func() bool { return len(seen.of("after "+topic)) > 1 }, "it is retried after the end of %s", topic)
		wait.Until(t, func() bool { return k.setting(topic, "retention.ms") != "" }, "%s is there", topic)
		assert.Equal(t, retention, k.setting(topic, "retention.ms"), topic)
	}
	assert.Equal(t, "-1", k.setting(k.dead(), "retention.ms"))
	wait.Until(t, func() bool { return k.stored(k.dead()) == 3 }, "no dead letter is lost that came after the end")
}

// TestKafkaCloseWhereTheNetworkDropsPackets: Close ends, while messages are in flight, copies are published and a tier
// is read. What was in flight comes again elsewhere.
func TestKafkaCloseWhereTheNetworkDropsPackets(t *testing.T) {
	t.Parallel()
	const count = 20
	k := startKafka(t, 4)
	var drops atomic.Bool
	var dropped atomic.Int64
	config := k.config(100*time.Millisecond, time.Hour)
	config.Sarama = sarama.NewConfig()
	config.Sarama.Version = sarama.V2_2_0_0
	config.Sarama.Net.ReadTimeout = time.Hour // only what the package itself does
	config.Sarama.Consumer.Group.Rebalance.Timeout = 25 * time.Second
	config.Sarama.Net.Proxy.Enable = true
	config.Sarama.Net.Proxy.Dialer = tapped(func(net.Conn, []byte) bool {
		if drops.Load() {
			dropped.Add(1)
		}
		return !drops.Load()
	})
	seen, release := newLedger(), make(chan struct{})
	bill := func(msg *message.Message) error {
		err := seen.failing(1)(msg)
		if err != nil && len(seen.of(msg.UUID)) == 1 {
			<-release
		}
		return err
	}
	connection, err := kafkaretry.Connect(config, nil)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 100 * time.Millisecond}, watermill.NopLogger{})
	require.NoError(t, err)
	connection.AddConsumerHandler(router, "bill", k.orders, bill)
	_, err = process.Serve(noContext, router)
	require.NoError(t, err)
	for _, id := range ids(count) {
		require.NoError(t, connection.Publisher().Publish(k.orders, message.NewMessage(id, nil)))
	}
	seen.await(t, 4, 0)
	drops.Store(true)
	close(release)
	wait.Until(t, func() bool { return dropped.Load() >= 4 }, "requests wait")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = router.Close()
		require.Error(t, connection.Close())
	}()
	wait.For(t, ended, "Close has ended")
	k.connect(k.config(100*time.Millisecond, time.Hour)).bills(bill)
	seen.await(t, count, 1)
}
