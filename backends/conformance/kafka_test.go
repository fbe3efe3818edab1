package conformance

import (
	"crypto/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// kafkaApp is an app on a cluster of Kafka. Its names are those of one test, because tests share a cluster.
type kafkaApp struct {
	t       *testing.T
	brokers []string
	admin   sarama.ClusterAdmin
	name    string
	orders  string // the app's topic
}

// startKafka returns an app on the shared cluster. Its topic has so many partitions, and is not there with 0.
func startKafka(t *testing.T, partitions int32) *kafkaApp {
	t.Helper()
	k := kafkaOn(t, strings.Split(sharedServer(t, "kafka"), ","))
	if partitions > 0 {
		k.make(k.orders, partitions)
	}
	return k
}

// startKafkaCluster starts a cluster for one test.
func startKafkaCluster(
	t *testing.T, nodes int, client *sarama.Config, settings ...string,
) ([]string, []*servers.Server) {
	t.Helper()
	all, err := servers.KafkaCluster(interrupted, nodes, client, settings...)
	require.NoError(t, err)
	keep(all...)
	var brokers []string
	for _, node := range all {
		t.Cleanup(node.Stop)
		brokers = append(brokers, node.URL)
	}
	return brokers, all
}

func kafkaOn(t *testing.T, brokers []string) *kafkaApp {
	t.Helper()
	name := "k" + strings.ToLower(rand.Text()[:8])
	k := &kafkaApp{t: t, brokers: brokers, name: name, orders: name + "-orders"}
	config := sarama.NewConfig()
	config.Version = sarama.V2_4_0_0
	var err error
	k.admin, err = sarama.NewClusterAdmin(k.brokers, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = k.admin.Close() })
	return k
}

// The names of topics.
func (k *kafkaApp) tier(delay string) string { return k.name + "." + delay }
func (k *kafkaApp) back() string             { return k.name + ".return.billing." + k.orders }
func (k *kafkaApp) dead() string             { return k.name + ".dead.billing." + k.orders }

// app connects an app.
func (k *kafkaApp) app(schedule ...time.Duration) *app { return k.connect(k.config(schedule...)) }

func (k *kafkaApp) connect(config kafkaretry.Config) *app {
	k.t.Helper()
	a := connect(k.t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		return kafkaretry.Connect(config, logger)
	})
	a.topic = k.orders
	return a
}

func (k *kafkaApp) config(schedule ...time.Duration) kafkaretry.Config {
	return kafkaretry.Config{
		Brokers: k.brokers, Group: "billing", Prefix: k.name, Policy: retry.Policy{Schedule: schedule},
	}
}

func (k *kafkaApp) letters() letters.Store {
	k.t.Helper()
	store, err := kafkaretry.Letters(k.config(), nil)
	require.NoError(k.t, err)
	k.t.Cleanup(func() { require.NoError(k.t, store.Close()) })
	return store
}

// stored returns how many messages are in a topic.
func (k *kafkaApp) stored(topic string) int {
	k.t.Helper()
	client, err := sarama.NewClient(k.brokers, sarama.NewConfig())
	require.NoError(k.t, err)
	defer func() { _ = client.Close() }()
	stored, err := pubsub.StoredOnKafka(client, topic)
	require.NoError(k.t, err)
	return stored
}

// make makes a topic with the cluster's replicas.
func (k *kafkaApp) make(topic string, partitions int32, settings ...string) {
	k.t.Helper()
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: -1, ConfigEntries: map[string]*string{}}
	for i := 0; i < len(settings); i += 2 {
		detail.ConfigEntries[settings[i]] = &settings[i+1]
	}
	require.NoError(k.t, k.admin.CreateTopic(topic, detail, false))
	wait.Until(k.t, func() bool { return len(k.describe(topic).Partitions) == int(partitions) }, "the topic is there")
}

func (k *kafkaApp) describe(topic string) *sarama.TopicMetadata {
	k.t.Helper()
	found, err := k.admin.DescribeTopics([]string{topic})
	require.NoError(k.t, err)
	require.Len(k.t, found, 1)
	return found[0]
}

// limit sets how large a message of a topic may be. A copy has more than 300 bytes, an order of the tests less.
func (k *kafkaApp) limit(topic string, bytes int) {
	k.t.Helper()
	size := strconv.Itoa(bytes)
	require.NoError(k.t, k.admin.IncrementalAlterConfig(sarama.TopicResource, topic,
		map[string]sarama.IncrementalAlterConfigsEntry{
			"max.message.bytes": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &size},
		}, false))
}

// TestKafkaPartitions: the return topic is made with the partitions of its topic, and a log line tells of fewer than may
// be in flight. The partitions of a tier may be others.
func TestKafkaPartitions(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 4)
	k.make(k.tier("1s"), 3)
	seen := newLedger()
	app := k.app(time.Second).bills(seen.failing(1))
	fewer := app.logged(watermill.InfoLogLevel, "fewer partitions")
	require.Len(t, fewer, 1)
	for field, want := range map[string]any{"topic": k.orders, "partitions": 4, "concurrency": 16} {
		assert.Equal(t, want, fewer[0].Fields[field], field)
	}
	assert.Equal(t, 4, len(k.describe(k.back()).Partitions))
	app.publish(ids(60)...)
	seen.await(t, 60, 1)
	assert.Zero(t, seen.duplicates())
	seen.neverEarly(t, monotonic, time.Second)
	app.stop()
	assert.EqualValues(t, 60, k.stored(k.orders))
	assert.Zero(t, k.stored(k.tier("1s")), "what is settled is deleted")
	assert.Zero(t, k.stored(k.back()))
}

// soon fails for an hour, but for a second where the message's ID begins with "soon", which is a requested delay.
func soon(seen *ledger) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		err := seen.failing(1)(msg)
		if err != nil && strings.HasPrefix(msg.UUID, "soon") {
			return backoff.RetryAfter(err, time.Second)
		}
		return err
	}
}

// TestKafkaDeletesWhatIsSettled and nothing else: the process that reads what is left gets all of it, once. As
// docs/other-pubsubs.md says, a requested delay behind messages that wait longer comes twice after a stop.
func TestKafkaDeletesWhatIsSettled(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	seen := newLedger()
	first := k.app(time.Hour).bills(soon(seen))
	first.publish("soon 1", "soon 2", "soon 3")
	seen.await(t, 3, 1)
	wait.Until(t, func() bool { return k.stored(k.tier("1h")) == 0 }, "what is settled is deleted")
	first.publish(ids(10)...)
	first.publish("soon behind")
	seen.await(t, 4, 1)
	first.stop()
	assert.EqualValues(t, 11, k.stored(k.tier("1h")), "what waits, and what is behind it")
	assert.EqualValues(t, 14, k.stored(k.orders), "a topic of the app")

	second := k.app(time.Hour).bills(soon(seen))
	wait.Until(t, func() bool { return len(seen.of("soon behind")) == 3 }, "what is left is read")
	second.stop()
	assert.EqualValues(t, 11, k.stored(k.tier("1h")))
	assert.Equal(t, 1, seen.duplicates())
	assert.Equal(t, 4, seen.reached(1), "the others wait")
}

// TestKafkaRebalance: neither a message that waits nor a call holds up a process that joins, and each goes on waiting,
// once.
func TestKafkaRebalance(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 2)
	seen := newLedger()
	proceed := make(chan struct{})
	start := func() *app {
		return k.app(time.Hour).bills(func(msg *message.Message) error {
			err := seen.failing(1)(msg)
			if msg.UUID == "slow" {
				<-proceed
			}
			return err
		})
	}
	first := start()
	first.publish(ids(20)...)
	seen.await(t, 20, 0)
	second := start()
	second.publish("slow")
	seen.await(t, 21, 0)
	third := start() // while a call runs
	close(proceed)
	third.publish("next")
	seen.await(t, 22, 0)
	wait.Until(t, func() bool { return k.stored(k.tier("1h")) == 22 }, "all wait")
	for _, app := range []*app{first, second, third} {
		app.stop()
	}
	assert.EqualValues(t, 22, k.stored(k.tier("1h")))
	assert.Zero(t, seen.reached(1))
}

// cooperative makes a strategy of cooperative rebalances. The build tag is newest: the lowest sarama has none.
var cooperative func() sarama.BalanceStrategy

// TestConformanceWhileKafkaRebalances: processes join and leave while a tier is forwarded. Nothing is lost, and
// few messages come twice.
func TestConformanceWhileKafkaRebalances(t *testing.T) {
	t.Parallel()
	strategies := map[string]func() sarama.BalanceStrategy{
		"range": sarama.NewBalanceStrategyRange, "sticky": sarama.NewBalanceStrategySticky, "cooperative": cooperative,
	}
	for name, strategy := range strategies {
		if strategy != nil {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				kafkaRebalances(t, strategy)
			})
		}
	}
}

func kafkaRebalances(t *testing.T, strategy func() sarama.BalanceStrategy) {
	k := startKafka(t, 4)
	k.make(k.tier("1s"), 2)
	seen := newLedger()
	start := func() *app {
		config := k.config(time.Second)
		config.Sarama = sarama.NewConfig()
		config.Sarama.Version = sarama.V2_4_0_0
		config.Sarama.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy()}
		return k.connect(config).bills(seen.failing(1))
	}
	first := start()
	taken, stop := flood(func(id string) bool {
		assert.NoError(t, first.Health().Ready(), "a rebalance is no fault")
		return assert.NoError(t, first.Publisher().Publish(k.orders, message.NewMessage(id, nil)))
	})
	more := func() { seen.await(t, taken(), 1) } // as many as were published by now
	more()
	second := start()
	more()
	third := start()
	more()
	second.stop()
	more()
	stop()
	more()
	t.Logf("%d of %d messages came twice", seen.duplicates(), taken())
	assert.Less(t, seen.duplicates(), taken()/5, "those that are being published are not given up")
	seen.neverEarly(t, monotonic, time.Second)
	first.stop()
	third.stop()
	stored := k.stored(k.tier("1s"))
	assert.Less(t, stored, taken()/10, "what is settled is deleted, but for the last ones before a rebalance")
}

// TestKafkaTopicThatCannotBeWritten: it does not stop a tier for the other topics, and its own messages wait until it
// can be written, also over a restart.
func TestKafkaTopicThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	const messages = 200 // two groups have more than a tier keeps in a process
	k := startKafka(t, 1)
	billing, shipping := newLedger(), newLedger()
	start := func() *app {
		return k.app(time.Second).handle("bill", k.orders, billing.failing(1)).
			handle("ship", k.orders, shipping.failing(1), retry.Options{Group: "shipping"}).run()
	}
	app := start()
	for _, topic := range []string{k.orders, k.back()} { // that of the retries must not be the smaller one
		k.limit(topic, 300)
	}
	app.publish(ids(messages)...)
	billing.await(t, messages, 0)
	shipping.await(t, messages, 1)
	app.stop()
	app = start()
	app.publish("another")
	shipping.await(t, messages+1, 1)
	require.Zero(t, billing.reached(1))
	k.limit(k.back(), 1<<20)
	billing.await(t, messages+1, 1)
	for _, seen := range []*ledger{billing, shipping} {
		t.Log(seen.duplicates(), "came twice, because of the stop")
		seen.neverEarly(t, monotonic, time.Second)
	}
	app.stop()
	assert.Zero(t, k.stored(k.tier("1s")), "what is settled is deleted")
}

// TestKafkaShutdown: a call that runs at a shutdown ends, and its message does not come again.
func TestKafkaShutdown(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	seen := newLedger()
	called, proceed := make(chan string, 10), make(chan struct{})
	bill := func(msg *message.Message) error {
		seen.add(msg)
		if called <- msg.UUID; msg.UUID == "slow" {
			<-proceed
		}
		return nil
	}
	app := k.app(time.Second).bills(bill)
	app.publish("slow", "next")
	require.Equal(t, "slow", wait.For(t, called, "a call runs"))
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		app.stop()
	}()
	wait.Until(t, func() bool { return len(app.logged(watermill.InfoLogLevel, "Closing router")) > 0 }, "the shutdown begins")
	close(proceed)
	wait.For(t, closed, "the shutdown ends")

	app = k.app(time.Second).bills(bill)
	require.Equal(t, "next", wait.For(t, called, "the other message comes"))
	app.stop()
	assert.Zero(t, seen.duplicates())
}

// TestKafkaSettings: a topic that would lose messages, or not take all, is an error of Run.
func TestKafkaSettings(t *testing.T) {
	t.Parallel()
	const tier, back, dead = ".1h", ".return.billing.", ".dead.billing."
	for _, test := range []struct{ name, topic, setting, value, err string }{
		{"short tier", tier, "retention.ms", "1800000", `.1h": its retention.ms is 1800000`},
		{"as long as the delay", tier, "retention.ms", "3600000", `retention.ms is 3600000`},
		{"short return topic", back, "retention.ms", "60000", `(3600000 ms)`},
		{"long enough", tier, "retention.ms", "3600001", ""},
		{"unlimited", tier, "retention.ms", "-1", ""},
		{"compacted", tier, "cleanup.policy", "compact", "cleanup.policy"},
		{"bytes", tier, "retention.bytes", "1000000", ""},
		{"tier for smaller messages", tier, "max.message.bytes", "1000000", `.1h": its max.message.bytes is 1000000`},
		{"smaller return topic", back, "max.message.bytes", "1000000", `max.message.bytes=1114124`},
		{"smaller dead-letter topic", dead, "max.message.bytes", "1000000", `max.message.bytes=1114124`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := startKafka(t, 1)
			topic := k.name + test.topic
			switch test.topic {
			case back:
				topic = k.back()
			case dead:
				topic = k.dead()
			}
			k.make(topic, 1, test.setting, test.value)
			app := k.app(time.Second, time.Hour).handle("bill", k.orders, nothing)
			if test.err != "" {
				require.ErrorContains(t, app.router.Run(t.Context()), test.err)
				return
			}
			app.run()
			warned := len(app.logged(watermill.ErrorLogLevel, "retention.bytes")) == 1
			assert.Equal(t, test.name == "bytes", warned)
		})
	}
}
