package conformance

import (
	"context"
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

// app connects an app.
func (k *kafkaCluster) app(schedule ...time.Duration) *app { return k.connect(k.config(schedule...)) }

func (k *kafkaCluster) connect(config kafkaretry.Config) *app {
	k.t.Helper()
	return connect(k.t, func(logger watermill.LoggerAdapter) (retry.Connection, error) {
		return kafkaretry.Connect(config, logger)
	})
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

// TestKafkaSurvivesALeader runs a retry on three brokers. A message that only its leader has is lost with the leader.
// The topics are made once.
func TestKafkaSurvivesALeader(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 3)
	for range 2 {
		seen := newLedger()
		app := k.app(100 * time.Millisecond).bills(seen.failing(1))
		app.publish("1")
		seen.await(t, 1, 1)
		app.stop()
	}
	const everyInSyncReplica, clusterDefault = -1, -1
	made := []string{orders, "retry.100ms", "retry.return.billing.orders", deadOrders, "retry.dead.unknown"}
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
	k.make(orders, 4)
	k.make("retry.1s", 3)
	seen := newLedger()
	var now, most atomic.Int32
	together := make(chan struct{})
	four := sync.OnceFunc(func() { close(together) })
	app := k.app(time.Second)
	app.handle("bill", orders, func(msg *message.Message) error {
		defer now.Add(-1)
		n := now.Add(1)
		for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
		}
		if n == 4 {
			four()
		}
		awaitEvent(t, together, "4 calls run")
		return seen.failing(1)(msg)
	})
	fewer := func() []watermill.CapturedMessage { return app.logged(watermill.InfoLogLevel, "fewer partitions") }
	assert.Empty(t, fewer())
	app.run()
	require.Len(t, fewer(), 1)
	for field, want := range map[string]any{"topic": orders, "partitions": 4, "concurrency": 16} {
		assert.Equal(t, want, fewer()[0].Fields[field], field)
	}
	assert.Equal(t, 4, k.partitions("retry.return.billing.orders"))
	app.publish(ids(60)...)
	seen.await(t, 60, 1)
	assert.Zero(t, seen.duplicates())
	assert.Zero(t, seen.early(time.Second))
	assert.LessOrEqual(t, most.Load(), int32(8), "4 of each topic")
	app.stop()
	assert.EqualValues(t, 60, k.stored(orders))
	assert.Zero(t, k.stored("retry.1s"), "what is settled is deleted")
	assert.Zero(t, k.stored("retry.return.billing.orders"))
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
	await(t, func() bool { return k.stored("retry.1h") == 0 }, "what is settled is deleted")
	first.publish(ids(10)...)
	first.publish("soon behind")
	seen.await(t, 4, 1)
	first.stop()
	assert.EqualValues(t, 11, k.stored("retry.1h"), "what waits, and what is behind it")
	assert.EqualValues(t, 14, k.stored(orders), "a topic of the app")

	second := k.app(time.Hour).bills(soon(seen))
	await(t, func() bool { return len(seen.of("soon behind")) == 3 }, "what is left is read")
	second.stop()
	assert.EqualValues(t, 11, k.stored("retry.1h"))
	assert.Equal(t, 1, seen.duplicates())
	assert.Equal(t, 4, seen.reached(1), "the others wait")
}

// TestKafkaRequestedDelayBehindManyMessages is late, as docs/other-pubsubs.md says: behind 256 messages that wait longer
// it waits for the first of them.
func TestKafkaRequestedDelayBehindManyMessages(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	k := startKafka(t, 1)
	seen := newLedger()
	app := k.app(delay).bills(soon(seen))
	app.publish(ids(300)...)
	app.publish("soon")
	seen.await(t, 301, 1)
	assert.GreaterOrEqual(t, seen.of("soon")[1].at.Sub(seen.of(id(0))[0].at), delay-time.Millisecond)
}

// TestKafkaRebalance: neither a message that waits nor a call holds up a process that joins, and each goes on waiting,
// once.
func TestKafkaRebalance(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make(orders, 2)
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
	await(t, func() bool { return k.stored("retry.1h") == 22 }, "all wait")
	for _, app := range []*app{first, second, third} {
		app.stop()
	}
	assert.EqualValues(t, 22, k.stored("retry.1h"))
	assert.Zero(t, seen.reached(1))
}

// TestKafkaRebalanceWhileMessagesAreForwarded: processes join and leave while a tier is forwarded. Nothing is lost, and
// few messages come twice.
func TestKafkaRebalanceWhileMessagesAreForwarded(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make(orders, 4)
	k.make("retry.1s", 2)
	seen := newLedger()
	start := func() *app { return k.app(time.Second).bills(seen.failing(1)) }
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
				assert.NoError(t, first.Publisher().Publish(orders, message.NewMessage(id, nil)))
			}
		})
	}
	more := func() { seen.await(t, int(messages.Load()), 1) } // as many as were published by now
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
	t.Logf("%d of %d messages came twice", seen.duplicates(), messages.Load())
	assert.Less(t, seen.duplicates(), int(messages.Load())/5, "those that are being published are not given up")
	assert.Zero(t, seen.early(time.Second))
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
	billing, shipping := newLedger(), newLedger()
	start := func() *app {
		return k.app(time.Second).handle("bill", orders, billing.failing(1)).
			handle("ship", orders, shipping.failing(1), retry.Options{Group: "shipping"}).run()
	}
	app := start()
	k.setUnwritable("retry.return.billing.orders")
	app.publish(ids(messages)...)
	billing.await(t, messages, 0)
	shipping.await(t, messages, 1)
	app.stop()
	app = start()
	app.publish("another")
	shipping.await(t, messages+1, 1)
	require.Zero(t, billing.reached(1))
	k.setUnwritable("")
	billing.await(t, messages+1, 1)
	for _, seen := range []*ledger{billing, shipping} {
		t.Log(seen.duplicates(), "came twice, because of the stop")
		assert.Zero(t, seen.early(time.Second))
	}
	app.stop()
	assert.Zero(t, k.stored("retry.1s"), "what is settled is deleted")
	k.mu.Lock()
	defer k.mu.Unlock()
	assert.Positive(t, k.refused)
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
	require.Equal(t, "slow", awaitEvent(t, called, "a call runs"))
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		app.stop()
	}()
	await(t, func() bool { return len(app.logged(watermill.InfoLogLevel, "Closing router")) > 0 }, "the shutdown begins")
	close(proceed)
	awaitEvent(t, closed, "the shutdown ends")

	app = k.app(time.Second).bills(bill)
	require.Equal(t, "next", awaitEvent(t, called, "the other message comes"))
	app.stop()
	assert.Zero(t, seen.duplicates())
}

// TestKafkaRetention: a topic that would lose messages is an error of Run.
func TestKafkaRetention(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, topic, setting, value, err string }{
		{"short tier", "retry.1h", "retention.ms", "1800000", `topic "retry.1h": its retention.ms is 1800000`},
		{"as long as the delay", "retry.1h", "retention.ms", "3600000", `retention.ms is 3600000`},
		{"short return topic", "retry.return.billing.orders", "retention.ms", "60000", `(3600000 ms)`},
		{"long enough", "retry.1h", "retention.ms", "3600001", ""},
		{"unlimited", "retry.1h", "retention.ms", "-1", ""},
		{"compacted", "retry.1h", "cleanup.policy", "compact", "cleanup.policy"},
		{"bytes", "retry.1h", "retention.bytes", "1000000", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := startKafka(t, 1)
			k.make(test.topic, 1, test.setting, test.value)
			app := k.app(time.Second, time.Hour).handle("bill", orders, nothing)
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
	seen := newLedger()
	app := k.connect(config).bills(func(msg *message.Message) error {
		if msg.UUID == "dead" {
			return backoff.Permanent(errDown)
		}
		return seen.failing(1)(msg)
	})
	app.publish("1", "dead")
	seen.await(t, 1, 1)
	await(t, func() bool { return k.stored(deadOrders) == 1 }, "there is a dead letter")
	app.stop()
	unseen := app.logged(watermill.ErrorLogLevel, "does not show the settings")
	assert.Len(t, unseen, 2, "of a tier and of a return topic")
	assert.Len(t, app.logged(watermill.ErrorLogLevel, "does not delete the settled messages"), 1)
	assert.EqualValues(t, 1, k.stored("retry.100ms"))
}

// TestKafkaHealth: while the cluster does not answer, every topic is named with the reason. A rebalance is no fault.
func TestKafkaHealth(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make(orders, 2)
	first := k.app(time.Second).bills(nothing)
	faults, stop := make(chan error, 1), make(chan struct{})
	go func() {
		for tick := time.Tick(10 * time.Millisecond); ; {
			select {
			case <-tick:
				if err := first.Health().Ready(); err == nil {
					continue
				} else {
					faults <- err
				}
			case <-stop:
				faults <- nil
			}
			return
		}
	}()
	other := k.app(time.Second).bills(nothing)
	other.publish("1")
	other.stop()
	first.publish("2")
	close(stop)
	require.NoError(t, <-faults, "a rebalance")

	down := func(is bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.down = is
	}
	down(true)
	await(t, func() bool {
		err := first.Health().Ready()
		return err != nil && strings.Contains(err.Error(), `cannot read "orders": `) &&
			strings.Contains(err.Error(), `cannot read "retry.return.billing.orders": `) &&
			strings.Contains(err.Error(), `handler "tier 1s" does not consume "retry.1s"`)
	}, "each topic is named")
	down(false)
	await(t, func() bool { return first.Health().Ready() == nil }, "all is read")
}

// TestKafkaSubscriptionsEnd: what a subscription takes is free after its end, also before the connection is closed. It
// runs alone, because it counts goroutines and what is allocated.
func TestKafkaSubscriptionsEnd(t *testing.T) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	k := startKafka(t, 1)
	app := k.app(100 * time.Millisecond)
	s, err := app.Subscriber("bill")
	require.NoError(t, err)
	cycle := func() {
		ctx, cancel := context.WithCancel(t.Context())
		in, err := s.Subscribe(ctx, orders)
		require.NoError(t, err)
		app.publish("1")
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
	await(t, func() bool {
		goroutines, objects = measure()
		return goroutines < 10 && objects < 10
	}, "%d goroutines and %d objects are left", &goroutines, &objects)
}

// TestKafkaLetters: letters of several partitions are shown.
func TestKafkaLetters(t *testing.T) {
	t.Parallel()
	k := startKafka(t, 1)
	k.make(deadOrders, 3)
	k.app(time.Second).bills(func(*message.Message) error { return backoff.Permanent(errDown) }).publish(ids(30)...)
	store, err := kafkaretry.Letters(kafkaretry.Config{Brokers: k.brokers}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	await(t, func() bool { return len(browse(t, store, deadOrders)) == 30 }, "all letters are shown")
	summary, err := store.Redrive(t.Context(), deadOrders, letters.Redrive{DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, letters.Summary{Total: 30, Done: 30}, summary)
	_, err = store.Redrive(t.Context(), deadOrders, letters.Redrive{})
	require.ErrorIs(t, err, kafkaretry.ErrKept)
	_, err = store.Discard(t.Context(), deadOrders, letters.Discard{})
	require.ErrorIs(t, err, kafkaretry.ErrKept)
	assert.ElementsMatch(t, ids(30), lettersOf(browse(t, store, deadOrders)))
}
