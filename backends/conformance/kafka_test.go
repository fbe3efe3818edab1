package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// kafkaCluster is brokers of kfake, and what they were asked for.
type kafkaCluster struct {
	t       *testing.T
	brokers []string
	admin   sarama.ClusterAdmin

	mu       sync.Mutex
	acks     map[string]int16 // by topic, of its last produce request
	replicas map[string]int16 // by topic, of its create request
	creates  int

	refuses bool // to show settings and to delete messages
	down    bool // no request is answered

	unwritable string // a topic
	refused    int    // requests to write it
}

func startKafka(t *testing.T, brokers int) *kafkaCluster {
	t.Helper()
	k := &kafkaCluster{t: t, acks: map[string]int16{}, replicas: map[string]int16{}}
	server, err := servers.KafkaCluster(t.Context(), brokers, 1, func(request kmsg.Request) (kmsg.Response, error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.down {
			return nil, errDown
		}
		return k.answer(request), nil
	})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	k.brokers = strings.Split(server.URL, ",")
	k.admin, err = sarama.NewClusterAdmin(k.brokers, sarama.NewConfig())
	require.NoError(t, err)
	t.Cleanup(func() { _ = k.admin.Close() })
	return k
}

// The error of Kafka for a client without the permission.
const authorizationFailed = 29

// refuseTopic answers a request to write the topic that cannot be written. Where the request has others, kfake answers
// about those only, which is an error for the topic, too.
func (k *kafkaCluster) refuseTopic(request *kmsg.ProduceRequest) kmsg.Response {
	isRefused := func(topic kmsg.ProduceRequestTopic) bool { return topic.Topic == k.unwritable }
	at := slices.IndexFunc(request.Topics, isRefused)
	if at < 0 {
		return nil
	}
	k.refused++
	if len(request.Topics) > 1 {
		request.Topics = slices.Delete(request.Topics, at, at+1)
		return nil
	}
	refused := kmsg.NewProduceResponseTopic()
	refused.Topic = k.unwritable
	for _, p := range request.Topics[0].Partitions {
		partition := kmsg.NewProduceResponseTopicPartition()
		partition.Partition, partition.ErrorCode = p.Partition, authorizationFailed
		refused.Partitions = append(refused.Partitions, partition)
	}
	response := request.ResponseKind().(*kmsg.ProduceResponse)
	response.Topics = append(response.Topics, refused)
	return response
}

func (k *kafkaCluster) setUnwritable(topic string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unwritable = topic
}

// answer is called with the lock.
func (k *kafkaCluster) answer(request kmsg.Request) kmsg.Response {
	switch request := request.(type) {
	case *kmsg.ProduceRequest:
		for _, topic := range request.Topics {
			k.acks[topic.Topic] = request.Acks
		}
		return k.refuseTopic(request)
	case *kmsg.CreateTopicsRequest:
		for _, topic := range request.Topics {
			k.replicas[topic.Topic] = topic.ReplicationFactor
			k.creates++
		}
	case *kmsg.DescribeConfigsRequest:
		if !k.refuses {
			return nil
		}
		response := request.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, resource := range request.Resources {
			refused := kmsg.NewDescribeConfigsResponseResource()
			refused.ResourceName, refused.ResourceType = resource.ResourceName, resource.ResourceType
			refused.ErrorCode = authorizationFailed
			response.Resources = append(response.Resources, refused)
		}
		return response
	case *kmsg.DeleteRecordsRequest:
		if !k.refuses {
			return nil
		}
		response := request.ResponseKind().(*kmsg.DeleteRecordsResponse)
		for _, topic := range request.Topics {
			refused := kmsg.NewDeleteRecordsResponseTopic()
			refused.Topic = topic.Topic
			for _, p := range topic.Partitions {
				partition := kmsg.NewDeleteRecordsResponseTopicPartition()
				partition.Partition, partition.ErrorCode = p.Partition, authorizationFailed
				refused.Partitions = append(refused.Partitions, partition)
			}
			response.Topics = append(response.Topics, refused)
		}
		return response
	}
	return nil
}

func (k *kafkaCluster) config(schedule ...time.Duration) kafkaretry.Config {
	return kafkaretry.Config{Brokers: k.brokers, Group: "billing", Policy: retry.Policy{Schedule: schedule}}
}

// stored returns how many messages are in a topic.
func (k *kafkaCluster) stored(topic string) (n int64) {
	k.t.Helper()
	client, err := sarama.NewClient(k.brokers, sarama.NewConfig())
	require.NoError(k.t, err)
	defer func() { _ = client.Close() }()
	partitions, err := client.Partitions(topic)
	require.NoError(k.t, err)
	for _, p := range partitions {
		for of, sign := range map[int64]int64{sarama.OffsetNewest: 1, sarama.OffsetOldest: -1} {
			offset, err := client.GetOffset(topic, p, of)
			require.NoError(k.t, err)
			n += sign * offset
		}
	}
	return n
}

// make makes a topic.
func (k *kafkaCluster) make(topic string, partitions int32, settings ...string) {
	k.t.Helper()
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
	for i := 0; i < len(settings); i += 2 {
		detail.ConfigEntries[settings[i]] = &settings[i+1]
	}
	require.NoError(k.t, k.admin.CreateTopic(topic, detail, false))
}

func (k *kafkaCluster) partitions(topic string) int {
	k.t.Helper()
	found, err := k.admin.DescribeTopics([]string{topic})
	require.NoError(k.t, err)
	require.Len(k.t, found, 1)
	return len(found[0].Partitions)
}

// kafkaApp is a process of an app.
type kafkaApp struct {
	retry.Connection
	k      *kafkaCluster
	router *message.Router
	logs   *watermill.CaptureLoggerAdapter
	ended  chan error
}

// connect connects an app. Its handlers are added before run.
func (k *kafkaCluster) connect(config kafkaretry.Config) *kafkaApp {
	k.t.Helper()
	a := &kafkaApp{k: k, logs: watermill.NewCaptureLogger(), ended: make(chan error, 1)}
	var err error
	a.Connection, err = kafkaretry.Connect(config, a.logs)
	require.NoError(k.t, err)
	a.router, err = message.NewRouter(message.RouterConfig{}, a.logs)
	require.NoError(k.t, err)
	return a
}

func (a *kafkaApp) run() *kafkaApp {
	go func() { a.ended <- a.router.Run(context.Background()) }()
	<-a.router.Running()
	return a
}

func (a *kafkaApp) stop() {
	a.k.t.Helper()
	require.NoError(a.k.t, a.router.Close())
	require.NoError(a.k.t, <-a.ended)
	require.NoError(a.k.t, a.Close())
}

func (a *kafkaApp) publish(topic string, ids ...string) {
	a.k.t.Helper()
	for _, id := range ids {
		require.NoError(a.k.t, a.Publisher().Publish(topic, message.NewMessage(id, []byte("order"))))
	}
}

// logged returns the lines of a level that have a text.
func (a *kafkaApp) logged(level watermill.LogLevel, text string) (found []watermill.CapturedMessage) {
	for _, line := range a.logs.Captured()[level] {
		if strings.Contains(line.Msg, text) {
			found = append(found, line)
		}
	}
	return found
}

// tries are the calls of a handler that fails once for each message.
type tries struct {
	mu     sync.Mutex
	failed map[string]time.Time
	back   map[string][]time.Time
	took   time.Duration // of each call
	now    int           // calls that run
	most   int
}

func newTries() *tries { return &tries{failed: map[string]time.Time{}, back: map[string][]time.Time{}} }

func (c *tries) handle(msg *message.Message) error {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	time.Sleep(c.took)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now--
	if record, _ := retry.ReadRecord(msg.Metadata); record.Failures == 0 {
		c.failed[msg.UUID] = time.Now()
		return errors.New("the bank is down")
	}
	c.back[msg.UUID] = append(c.back[msg.UUID], time.Now())
	return nil
}

func (c *tries) counts() (failed, back int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.failed), len(c.back)
}

func (c *tries) await(t *testing.T, failed, back int) {
	t.Helper()
	require.Eventually(t, func() bool { f, b := c.counts(); return f >= failed && b >= back }, patience,
		10*time.Millisecond)
}

// latest returns how late the last retry was, and how many came twice or early.
func (c *tries) latest(delay time.Duration) (late time.Duration, twice, early int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, at := range c.back {
		twice += len(at) - 1
		after := at[0].Sub(c.failed[id]) - delay
		if late = max(late, after); after < -time.Millisecond {
			early++
		}
	}
	return late, twice, early
}

func numbered(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(i))
	}
	return ids
}

// TestKafkaSurvivesALeader runs a retry on three brokers. A message that only its leader has is lost with the leader.
// The topics are made once.
func TestKafkaSurvivesALeader(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 3)
	for range 2 {
		calls := newTries()
		app := k.connect(k.config(100 * time.Millisecond))
		app.AddConsumerHandler(app.router, "bill", "orders", calls.handle)
		app.run()
		app.publish("orders", "1")
		calls.await(t, 1, 1)
		app.stop()
	}
	const everyInSyncReplica, clusterDefault = -1, -1
	made := []string{
		"orders", "retry.100ms", "retry.return.billing.orders", "retry.dead.billing.orders", "retry.dead.unknown",
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	assert.Equal(t, len(made), k.creates)
	for _, topic := range made {
		assert.EqualValues(t, clusterDefault, k.replicas[topic], topic)
	}
	for _, topic := range made[:3] {
		require.Contains(t, k.acks, topic)
		assert.EqualValues(t, everyInSyncReplica, k.acks[topic], topic)
	}
}

// TestKafkaPartitions: as many messages are in flight as a topic has partitions, of first deliveries and of retries.
func TestKafkaPartitions(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make("orders", 4)
	k.make("retry.1s", 3)
	calls := newTries()
	calls.took = 100 * time.Millisecond
	app := k.connect(k.config(time.Second))
	app.AddConsumerHandler(app.router, "bill", "orders", calls.handle)
	few := app.logged(watermill.InfoLogLevel, "fewer partitions")
	app.run()
	assert.Empty(t, few)
	few = app.logged(watermill.InfoLogLevel, "fewer partitions")
	require.Len(t, few, 1)
	assert.Equal(t, "orders", few[0].Fields["topic"])
	assert.Equal(t, 4, few[0].Fields["partitions"])
	assert.Equal(t, 16, few[0].Fields["concurrency"])
	assert.Equal(t, 4, k.partitions("retry.return.billing.orders"))
	app.publish("orders", numbered(60)...)
	calls.await(t, 60, 60)
	_, twice, early := calls.latest(time.Second)
	assert.Zero(t, twice)
	assert.Zero(t, early)
	assert.Greater(t, calls.most, 2)
	assert.LessOrEqual(t, calls.most, 8, "4 of each topic")
	app.publish("orders", "waits")
	calls.await(t, 61, 60)
	assert.Positive(t, k.stored("retry.1s")+k.stored("retry.return.billing.orders"))
	calls.await(t, 61, 61)
	app.stop()
	assert.EqualValues(t, 61, k.stored("orders"))
	assert.Zero(t, k.stored("retry.1s"), "what is settled is deleted")
	assert.Zero(t, k.stored("retry.return.billing.orders"))
}

// TestKafkaDeletesWhatIsSettled and nothing else: the process that reads what is left gets all of it, once.
func TestKafkaDeletesWhatIsSettled(t *testing.T) {
	t.Parallel()
	const delay = 6 * time.Second
	k := startKafka(t, 1)
	calls := newTries()
	start := func() *kafkaApp {
		app := k.connect(k.config(delay))
		app.AddConsumerHandler(app.router, "bill", "orders", calls.handle)
		return app.run()
	}
	all := numbered(20)
	first := start()
	first.publish("orders", all[:10]...)
	calls.await(t, 10, 10)
	began := time.Now()
	first.publish("orders", all[10:]...)
	calls.await(t, 20, 10)
	require.Eventually(t, func() bool { return k.stored("retry.6s") <= 10 }, patience, 50*time.Millisecond)
	waiting := k.stored("retry.6s")
	inTime := time.Since(began) < delay
	assert.True(t, waiting == 10 || !inTime, "%d wait", waiting)
	assert.EqualValues(t, 20, k.stored("orders"), "a topic of the app")
	first.stop()
	inTime = time.Since(began) < delay // else the relay may have published some of them before the stop
	second := start()
	calls.await(t, 20, 20)
	_, twice, early := calls.latest(delay)
	assert.True(t, twice == 0 || !inTime, "%d came twice", twice)
	assert.Zero(t, early)
	second.stop()
}

// TestKafkaRebalance: neither a message that waits nor a call holds up a process that joins, and each goes on waiting,
// once.
func TestKafkaRebalance(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make("orders", 2)
	calls := newTries()
	proceed := make(chan struct{})
	start := func() *kafkaApp {
		app := k.connect(k.config(time.Hour))
		app.AddConsumerHandler(app.router, "bill", "orders", func(msg *message.Message) error {
			err := calls.handle(msg)
			if msg.UUID == "slow" {
				<-proceed
			}
			return err
		})
		return app.run()
	}
	first := start()
	first.publish("orders", numbered(20)...)
	calls.await(t, 20, 0)
	second := start()
	second.publish("orders", "slow")
	calls.await(t, 21, 0)
	third := start() // while a call runs
	close(proceed)
	third.publish("orders", "last")
	calls.await(t, 22, 0)
	require.Eventually(t, func() bool { return k.stored("retry.1h") == 22 }, patience, 50*time.Millisecond)
	for _, app := range []*kafkaApp{first, second, third} {
		app.stop()
	}
	assert.EqualValues(t, 22, k.stored("retry.1h"))
	assert.Empty(t, calls.back)
}

// TestKafkaRebalanceWhileMessagesAreForwarded: processes join and leave while a tier is forwarded. Nothing is lost, and
// few messages come twice.
func TestKafkaRebalanceWhileMessagesAreForwarded(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make("orders", 4)
	k.make("retry.1s", 2)
	calls := newTries()
	start := func() *kafkaApp {
		app := k.connect(k.config(time.Second))
		app.AddConsumerHandler(app.router, "bill", "orders", calls.handle)
		return app.run()
	}
	first := start()
	var published sync.WaitGroup
	var messages atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		published.Go(func() {
			for tick := time.Tick(10 * time.Millisecond); ; {
				select {
				case <-stop:
					return
				case <-tick:
				}
				id := fmt.Sprint(messages.Add(1))
				assert.NoError(t, first.Publisher().Publish("orders", message.NewMessage(id, nil)))
			}
		})
	}
	more := func() { // waits for as many as were published by now
		n := int(messages.Load())
		calls.await(t, n, n)
	}
	more()
	second := start()
	more()
	third := start()
	more()
	second.stop()
	more()
	close(stop)
	published.Wait()
	more()
	_, twice, early := calls.latest(time.Second)
	t.Logf("%d of %d messages came twice", twice, messages.Load())
	assert.Less(t, twice, int(messages.Load())/5, "those that are being published are not given up")
	assert.Zero(t, early)
	first.stop()
	third.stop()
	assert.Zero(t, k.stored("retry.1s"), "what is settled is deleted")
}

// TestKafkaTopicThatCannotBeWritten: it does not stop a tier for the other topics, and its own messages wait until it
// can be written, also over a restart.
func TestKafkaTopicThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	const messages = 200 // two groups have more than a tier keeps in a process
	k := startKafka(t, 1)
	billing, shipping := newTries(), newTries()
	start := func() *kafkaApp {
		app := k.connect(k.config(time.Second))
		app.AddConsumerHandler(app.router, "bill", "orders", billing.handle)
		app.AddConsumerHandler(app.router, "ship", "orders", shipping.handle, retry.Options{Group: "shipping"})
		return app.run()
	}
	app := start()
	k.setUnwritable("retry.return.billing.orders")
	app.publish("orders", numbered(messages)...)
	billing.await(t, messages, 0)
	shipping.await(t, messages, messages)
	app.stop()
	app = start()
	app.publish("orders", "another")
	shipping.await(t, messages+1, messages+1)
	_, back := billing.counts()
	require.Zero(t, back)
	k.setUnwritable("")
	billing.await(t, messages+1, messages+1)
	for _, calls := range []*tries{billing, shipping} {
		_, twice, early := calls.latest(time.Second)
		t.Log(twice, "came twice, because of the stop")
		assert.Zero(t, early)
	}
	app.stop()
	assert.Zero(t, k.stored("retry.1s"), "what is settled is deleted")
	k.mu.Lock()
	defer k.mu.Unlock()
	assert.Positive(t, k.refused)
}

// TestKafkaRequestedDelays shows what docs/other-pubsubs.md says of requested delays: behind messages that wait longer on
// the same tier, one comes twice after a stop, and the one behind 256 of them is late.
func TestKafkaRequestedDelays(t *testing.T) {
	t.Parallel()
	const delay, requested = 8 * time.Second, time.Second
	k := startKafka(t, 1)
	calls := newTries()
	start := func() *kafkaApp {
		app := k.connect(k.config(delay))
		app.AddConsumerHandler(app.router, "bill", "orders", func(msg *message.Message) error {
			err := calls.handle(msg)
			if strings.HasPrefix(msg.UUID, "soon") {
				return backoff.RetryAfter(err, requested)
			}
			return err
		})
		return app.run()
	}
	app := start()
	app.publish("orders", "first", "soon-1")
	calls.await(t, 2, 1)
	app.stop()
	inTime := time.Since(calls.failed["first"]) < delay // else the relay may have published both before the stop
	app = start()
	app.publish("orders", numbered(300)...)
	app.publish("orders", "soon-2")
	calls.await(t, 303, 303)
	app.stop()
	calls.mu.Lock()
	defer calls.mu.Unlock()
	back := calls.back["soon-2"][0]
	t.Log("after the stop came", len(calls.back["soon-1"]), "times; behind 256 others after",
		back.Sub(calls.failed["soon-2"]))
	assert.True(t, len(calls.back["soon-1"]) >= 2 || !inTime)
	assert.GreaterOrEqual(t, back.Sub(calls.failed["0"]), delay-time.Millisecond, "it has waited for the first of them")
}

// TestKafkaShutdown: a call that runs at a shutdown ends, and its message does not come again. One that does not end is
// given up by Close.
func TestKafkaShutdown(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	var mu sync.Mutex
	calls := map[string]int{}
	called, proceed := make(chan string, 10), make(chan struct{})
	start := func() *kafkaApp {
		app := k.connect(k.config(time.Second))
		app.AddConsumerHandler(app.router, "bill", "orders", func(msg *message.Message) error {
			mu.Lock()
			calls[msg.UUID]++
			mu.Unlock()
			called <- msg.UUID
			if msg.UUID == "slow" {
				<-proceed
			}
			return nil
		})
		return app.run()
	}
	app := start()
	app.publish("orders", "slow", "next")
	require.Equal(t, "slow", <-called)
	closing := make(chan error, 1)
	go func() { closing <- app.router.Close() }()
	require.Eventually(t, func() bool { return len(app.logged(watermill.InfoLogLevel, "Closing router")) > 0 }, patience,
		time.Millisecond)
	close(proceed)
	require.NoError(t, <-closing)
	require.NoError(t, <-app.ended)
	require.NoError(t, app.Close())

	app = start()
	require.Equal(t, "next", <-called)
	app.stop()
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, map[string]int{"slow": 1, "next": 1}, calls)
}

// TestKafkaRetention: a topic that would lose messages is an error of Run.
func TestKafkaRetention(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		topic    string
		settings []string
		err      string
	}{
		{"short tier", "retry.1h", []string{"retention.ms", "1800000"}, `topic "retry.1h": its retention.ms is 1800000`},
		{"as long as the delay", "retry.1h", []string{"retention.ms", "3600000"}, `retention.ms is 3600000`},
		{"short return topic", "retry.return.billing.orders", []string{"retention.ms", "60000"}, `(3600000 ms)`},
		{"long enough", "retry.1h", []string{"retention.ms", "3600001"}, ""},
		{"unlimited", "retry.1h", []string{"retention.ms", "-1"}, ""},
		{"compacted", "retry.1h", []string{"cleanup.policy", "compact"}, "cleanup.policy"},
		{"bytes", "retry.1h", []string{"retention.bytes", "1000000"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := startKafka(t, 1)
			k.make(test.topic, 1, test.settings...)
			app := k.connect(k.config(time.Second, time.Hour))
			app.AddConsumerHandler(app.router, "bill", "orders", func(*message.Message) error { return nil })
			if test.err == "" {
				app.run()
				app.stop()
				assert.Equal(t, test.name == "bytes", len(app.logged(watermill.ErrorLogLevel, "retention.bytes")) == 1)
				return
			}
			require.ErrorContains(t, app.router.Run(t.Context()), test.err)
			require.NoError(t, app.Close())
		})
	}
}

// TestKafkaWithFewPermissions: the cluster makes no topic by itself, and shows and deletes nothing. The app works, with
// warnings.
func TestKafkaWithFewPermissions(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.refuses = true
	config := k.config(100 * time.Millisecond)
	config.Sarama = sarama.NewConfig()
	config.Sarama.Version = sarama.V2_2_0_0 // kfake gives an older client no member ID
	config.Sarama.Metadata.AllowAutoTopicCreation = false
	calls := newTries()
	app := k.connect(config)
	app.AddConsumerHandler(app.router, "bill", "orders", func(msg *message.Message) error {
		if msg.UUID == "dead" {
			return backoff.Permanent(errors.New("no such account"))
		}
		return calls.handle(msg)
	})
	app.run()
	app.publish("orders", "1", "dead")
	calls.await(t, 1, 1)
	require.Eventually(t, func() bool { return k.stored("retry.dead.billing.orders") == 1 }, patience,
		50*time.Millisecond)
	app.stop()
	unseen := app.logged(watermill.ErrorLogLevel, "does not show the settings")
	assert.Len(t, unseen, 2, "of a tier and of a return topic")
	assert.Len(t, app.logged(watermill.ErrorLogLevel, "does not delete the settled messages"), 1)
	assert.EqualValues(t, 1, k.stored("retry.100ms"))
}

// TestKafkaRefusesNames: kfake would take the name of this topic.
func TestKafkaRefusesNames(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	app := k.connect(k.config(time.Second))
	app.AddConsumerHandler(app.router, "bill", "orders", func(*message.Message) error {
		t.Error("it consumes")
		return nil
	})
	app.AddConsumerHandler(app.router, "ship", "orders/new", func(*message.Message) error { return nil })
	app.publish("orders", "1")
	require.ErrorContains(t, app.Publisher().Publish("orders/new", message.NewMessage("1", nil)), "Kafka refuses")
	require.ErrorContains(t, app.router.Run(t.Context()), `Kafka refuses the topic name "orders/new"`)
	require.NoError(t, app.Close())
}

// TestKafkaHealth: while the cluster does not answer, every topic is named with the reason. A rebalance is no fault.
func TestKafkaHealth(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make("orders", 2)
	start := func() *kafkaApp {
		app := k.connect(k.config(time.Second))
		app.AddConsumerHandler(app.router, "bill", "orders", func(*message.Message) error { return nil })
		return app.run()
	}
	app := start()
	ready := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		for tick := time.Tick(10 * time.Millisecond); ; {
			select {
			case <-tick:
				if err := app.Health().Ready(); err != nil {
					ready <- err
					return
				}
			case <-stop:
				ready <- nil
				return
			}
		}
	}()
	other := start()
	other.publish("orders", "1")
	other.stop()
	app.publish("orders", "2")
	close(stop)
	require.NoError(t, <-ready, "a rebalance")

	down := func(is bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.down = is
	}
	down(true)
	named := assert.Eventually(t, func() bool {
		err := app.Health().Ready()
		return err != nil && strings.Contains(err.Error(), `cannot read "orders": `) &&
			strings.Contains(err.Error(), `cannot read "retry.return.billing.orders": `) &&
			strings.Contains(err.Error(), `handler "tier 1s" does not consume "retry.1s"`)
	}, patience, 50*time.Millisecond)
	t.Log(app.Health().Ready())
	require.True(t, named)
	down(false)
	require.Eventually(t, func() bool { return app.Health().Ready() == nil }, patience, 50*time.Millisecond)
	app.stop()
}

// TestKafkaSubscriptionsEnd: what a subscription takes is free after its end, also before the connection is closed. It
// runs alone, because it counts goroutines and what is allocated.
func TestKafkaSubscriptionsEnd(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	k := startKafka(t, 1)
	app := k.connect(k.config(100 * time.Millisecond))
	s, err := app.Subscriber("bill")
	require.NoError(t, err)
	cycle := func() {
		ctx, cancel := context.WithCancel(t.Context())
		in, err := s.Subscribe(ctx, "orders")
		require.NoError(t, err)
		app.publish("orders", "1")
		(<-in).Ack()
		cancel()
		for range in { // until it is closed
		}
	}
	measure := func() (goroutines, objects int64) {
		var stacks strings.Builder
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&stacks, 2))
		goroutines = int64(strings.Count(stacks.String(), "created by github.com/tieredretry/watermill-retry/backends/kafka"))
		for range 3 { // the profile is that of the last collection but one
			runtime.GC()
		}
		records := make([]runtime.MemProfileRecord, 100_000)
		n, all := runtime.MemProfile(records, false)
		require.True(t, all)
		for _, record := range records[:n] {
			frames := runtime.CallersFrames(record.Stack())
			for more := true; more; {
				var frame runtime.Frame
				if frame, more = frames.Next(); strings.HasSuffix(frame.Function, "kafkaretry.(*subscriber).add") {
					objects += record.InUseObjects()
					break
				}
			}
		}
		return goroutines, objects
	}
	for range 20 {
		cycle()
	}
	var goroutines, objects int64
	require.Eventually(t, func() bool {
		goroutines, objects = measure()
		return goroutines < 10 && objects < 10
	}, patience, 100*time.Millisecond)
	t.Log(goroutines, "goroutines,", objects, "objects")
	require.NoError(t, app.Close())
}

// TestKafkaLetters: letters of several partitions are shown, and stay.
func TestKafkaLetters(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make("retry.dead.billing.orders", 3)
	app := k.connect(k.config(time.Second))
	app.AddConsumerHandler(app.router, "bill", "orders", func(*message.Message) error {
		return backoff.Permanent(errors.New("no such account"))
	})
	app.run()
	app.publish("orders", numbered(30)...)
	store, err := kafkaretry.Letters(kafkaretry.Config{Brokers: k.brokers}, nil)
	require.NoError(t, err)
	browse := func() (ids []string) {
		for letter, err := range store.Browse(t.Context(), "retry.dead.billing.orders", letters.Filter{}) {
			require.NoError(t, err)
			assert.Equal(t, "retry.return.billing.orders", letter.Target)
			ids = append(ids, letter.ID)
		}
		return ids
	}
	require.Eventually(t, func() bool { return len(browse()) == 30 }, patience, 50*time.Millisecond)
	_, err = store.Redrive(t.Context(), "retry.dead.billing.orders", letters.Redrive{})
	require.ErrorIs(t, err, kafkaretry.ErrKept)
	_, err = store.Discard(t.Context(), "retry.dead.billing.orders", letters.Discard{})
	require.ErrorIs(t, err, kafkaretry.ErrKept)
	summary, err := store.Redrive(t.Context(), "retry.dead.billing.orders", letters.Redrive{DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 30, Done: 30}, summary)
	assert.ElementsMatch(t, numbered(30), browse())
	require.NoError(t, store.Close())
	app.stop()
}
