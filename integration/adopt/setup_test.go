// Package adopt follows the steps of docs/adopting.md on a real broker, in the order of the page: instances of several builds
// of one app share a queue, and every message is counted by its identity.
package adopt

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	// patience is the deadline of every event.
	patience = 90 * time.Second

	// bounded is how many deliveries of one message prove that there is no loop: two tries, and what is given back when
	// instances stop.
	bounded = 20
)

var errDown = errors.New("the provider is down")

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "12") // these tests wait for their traffic
	m.Run()
}

// build is what an instance of the app is made of.
type build int

const (
	stock          build = iota // watermill-amqp alone
	subscriberOnly              // the library's subscriber configuration, no middleware
	withMiddleware              // both
	connectedOnly               // Connect, without its middleware
	connected                   // Connect
	byHand                      // amqp091-go alone, with the way of the deployment
)

// deployment is an app: its queue, its instances, and what they have done together.
type deployment struct {
	t             testing.TB
	prefix, queue string
	schedule      backoff.Schedule
	fails         func(identity string, call int) bool
	takes         time.Duration // how long a handler works on a message
	way           *way          // how instances by hand make messages wait, and publishers that are not Watermill's

	concurrency int             // of its instances
	prepare     func(*instance) // changes an instance before it starts; may be nil
	started     []*instance

	calls, processed *testapp.Ledger
	deliveries       *testapp.Ledger // to any instance
	unreadable       *testapp.Ledger // to a stock instance, whose marshaler returned an error
	takenOver        *testapp.Ledger // to an instance with the library, after the message has waited by hand
}

// newDeployment is an app in which about every tenth message fails at its first call. Which ones has no regularity: the broker gives
// messages to the consumers in turn, and with every tenth message exactly, some consumers never get one that fails.
func newDeployment(t testing.TB) *deployment {
	t.Helper()
	name := broker.Name(t, "adopt")
	broker.Clean(t, name)
	return &deployment{
		t: t, prefix: name, queue: "orders_" + name,
		schedule: backoff.Schedule{300 * time.Millisecond, time.Second},
		fails:    func(identity string, call int) bool { return call == 1 && crc32.ChecksumIEEE([]byte(identity))%10 == 0 },
		calls:    testapp.NewLedger(), processed: testapp.NewLedger(), deliveries: testapp.NewLedger(), unreadable: testapp.NewLedger(),
		takenOver: testapp.NewLedger(),
	}
}

// declare makes the queue as the app did before it had the library.
func (d *deployment) declare() {
	d.t.Helper()
	require.NoError(d.t, d.subscribe(d.instance(stock)))
}

// subscribe declares what an instance declares, and consumes nothing.
func (d *deployment) subscribe(i *instance) error {
	d.t.Helper()
	s, err := amqp.NewSubscriber(i.config(), i.log)
	require.NoError(d.t, err)
	defer func() { require.NoError(d.t, s.Close()) }()
	return s.SubscribeInitialize(i.queue)
}

// tiers are the names of the tier queues.
func (d *deployment) tiers() []string {
	var names []string
	for _, tier := range d.schedule.Tiers() {
		names = append(names, d.queue+"."+d.prefix+"."+tier.String())
	}
	return names
}

// instance is a process of the app. Its fields may be changed until it starts.
type instance struct {
	d        *deployment
	build    build
	queue    string
	handlers int
	change   func(*config.Config)
	gate     atomic.Pointer[chan struct{}] // its handlers wait for it

	middlewares []message.HandlerMiddleware // of its router, before all others
	concurrency int                         // with Connect; 0: the default

	made      *config.Builder // nil before the first use
	log       *testapp.Log
	processed atomic.Int64
	returned  atomic.Int64 // processed after they had come back from a tier
	retried   *testapp.Ledger
	stop      func()
}

func (d *deployment) instance(b build) *instance {
	return &instance{
		d: d, build: b, queue: d.queue, handlers: 2, concurrency: d.concurrency, change: func(*config.Config) {},
		log: &testapp.Log{}, retried: testapp.NewLedger(),
	}
}

func (d *deployment) start(b build) *instance {
	d.t.Helper()
	i := d.instance(b)
	if d.prepare != nil {
		d.prepare(i)
	}
	return i.start()
}

func (i *instance) options() config.Config {
	c := config.Config{AMQP: amqp.NewDurableQueueConfig(broker.URL(i.d.t)), Policy: retry.Policy{Schedule: i.d.schedule}, Settings: rabbitmq.Settings{Prefix: i.d.prefix}}
	c.AMQP.Marshaler = counting{d: i.d}
	i.change(&c)
	return c
}

// builder is the one of the instance: its middleware takes the messages of its own subscriber only.
func (i *instance) builder() *config.Builder {
	i.d.t.Helper()
	if i.made == nil {
		var err error
		i.made, err = config.NewBuilder(i.options())
		require.NoError(i.d.t, err)
	}
	return i.made
}

// config is what the instance gives watermill-amqp's subscriber.
func (i *instance) config() amqp.Config {
	i.d.t.Helper()
	if i.build != stock {
		return i.builder().SubscriberConfig()
	}
	c := config.Config{AMQP: amqp.NewDurableQueueConfig(broker.URL(i.d.t))}
	c.AMQP.Marshaler = counting{d: i.d, stock: true}
	i.change(&c)
	return c.AMQP
}

// start runs the instance until it is stopped, or the test ends.
func (i *instance) start() *instance {
	t := i.d.t
	t.Helper()
	i.d.started = append(i.d.started, i)
	if i.build == byHand {
		i.stop = sync.OnceFunc(i.startByHand())
		t.Cleanup(i.stop)
		return i
	}
	router := message.NewDefaultRouter(i.log)
	router.AddMiddleware(i.middlewares...)
	add := i.addParts
	if i.build == connectedOnly || i.build == connected {
		add = i.addConnected
	}
	closeRest := add(router)
	stopRouter := testapp.Start(t, router)
	stopped := false
	i.stop = func() {
		if stopped {
			return
		}
		stopped = true
		stopRouter()
		require.NoError(t, closeRest())
	}
	t.Cleanup(i.stop)
	return i
}

// addParts adds the handlers of an instance on watermill-amqp's subscriber. It returns what closes the rest after the router.
func (i *instance) addParts(router *message.Router) (closeRest func() error) {
	t := i.d.t
	t.Helper()
	subscriber, err := amqp.NewSubscriber(i.config(), i.log)
	require.NoError(t, err)
	closeRest = func() error { return nil }
	if i.build == withMiddleware {
		b := i.builder()
		closeRest = b.Close
		b.Observe(eventtest.OnEvent(i.event))
		tiered, err := b.NewTieredRetry(i.log)
		require.NoError(t, err)
		router.AddMiddleware(tiered)
	}
	for n := range i.handlers {
		router.AddConsumerHandler(i.name(n), i.queue, subscriber, i.handle)
	}
	return closeRest
}

// addConnected is addParts for an instance on Connect.
func (i *instance) addConnected(router *message.Router) (closeRest func() error) {
	t := i.d.t
	t.Helper()
	rabbit, err := config.Connect(i.options(), i.log)
	require.NoError(t, err)
	rabbit.Observe(eventtest.OnEvent(i.event))
	options := retry.Options{Concurrency: i.concurrency}
	for n := range i.handlers {
		if i.build == connected {
			rabbit.AddConsumerHandler(router, i.name(n), i.queue, i.handle, options)
			continue
		}
		subscriber, err := rabbit.Subscriber(i.name(n), options)
		require.NoError(t, err)
		router.AddConsumerHandler(i.name(n), i.queue, subscriber, i.handle)
	}
	return rabbit.Close
}

func (i *instance) name(n int) string { return fmt.Sprintf("%s/%d", i.queue, n) }

func (i *instance) event(e retry.Event) {
	if e.Outcome == retry.Retried {
		i.retried.Add(e.Destination)
	}
}

func (i *instance) handle(msg *message.Message) error {
	if gate := i.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-msg.Context().Done():
			return msg.Context().Err()
		}
	}
	<-time.After(i.d.takes)
	identity := string(msg.Payload)
	unable := i.build == byHand && i.d.way.succeeds
	if i.d.fails(identity, i.d.calls.Add(identity)) && !unable {
		return errDown
	}
	i.d.processed.Add(identity)
	i.processed.Add(1)
	if record, _ := retry.ReadRecord(msg.Metadata); record.Failures > 0 {
		i.returned.Add(1)
	}
	return nil
}

// block keeps the instance's handlers from work until they are released, or the instance stops.
func (i *instance) block() (release func()) {
	gate := make(chan struct{})
	i.gate.Store(&gate)
	return sync.OnceFunc(func() { close(gate) })
}

// work waits until each of the instances has processed so many messages more: they run beside each other.
func work(t testing.TB, messages int64, instances ...*instance) {
	t.Helper()
	for _, i := range instances {
		want := i.processed.Load() + messages
		broker.Eventually(t, patience, func() bool { return i.processed.Load() >= want }, "every instance takes part")
	}
}

// replace deploys another build, one instance after the other: for a while both take part. The functions are called
// while the first new instance is beside all old ones.
func (d *deployment) replace(running []*instance, b build, meanwhile ...func(first *instance)) (replaced []*instance) {
	d.t.Helper()
	for n, old := range running {
		replaced = append(replaced, d.start(b))
		work(d.t, 10, append(slices.Clone(replaced), running[n:]...)...)
		for _, f := range meanwhile {
			f(replaced[0])
		}
		meanwhile = nil
		old.stop()
	}
	work(d.t, 10, replaced...)
	return replaced
}

// both starts two instances.
func (d *deployment) both(b build) []*instance { return []*instance{d.start(b), d.start(b)} }

func stop(instances []*instance) {
	for _, i := range instances {
		i.stop()
	}
}

// returnsTo waits until each instance has processed a message that came back from a tier.
func returnsTo(t testing.TB, instances ...*instance) {
	t.Helper()
	for _, i := range instances {
		broker.Eventually(t, patience, func() bool { return i.returned.Load() > 0 }, "a message comes back from a tier to %v", i.build)
	}
}

// counting is the app's marshaler, watermill-amqp's own. It counts.
type counting struct {
	amqp.DefaultMarshaler
	d     *deployment
	stock bool
}

func (c counting) Unmarshal(delivery amqp091.Delivery) (*message.Message, error) {
	if slices.ContainsFunc(c.d.waiting(), func(queue string) bool { return diedOn(queue, delivery) }) {
		c.d.takenOver.Add(string(delivery.Body))
	}
	msg, err := c.DefaultMarshaler.Unmarshal(delivery)
	if err == nil || c.stock { // the library asks again, without the headers that are not strings
		c.d.deliveries.Add(string(delivery.Body))
	}
	if err != nil && c.stock {
		c.d.unreadable.Add(string(delivery.Body))
	}
	return msg, err
}

func most(l *testapp.Ledger) (count int) {
	for _, n := range l.Counts() {
		count = max(count, n)
	}
	return count
}

// traffic is published to a queue, confirmed, until it is stopped.
type traffic struct {
	d         *deployment
	t         testing.TB
	queue     atomic.Pointer[string]
	published atomic.Int64
	cancel    context.CancelFunc
	done      chan error
}

// send publishes so many messages at once, and then goes on at a steady rate.
func (d *deployment) send(atOnce int) *traffic {
	d.t.Helper()
	f := &traffic{d: d, t: d.t, done: make(chan error, 1)}
	f.queue.Store(&d.queue)
	channel := f.burst(atOnce)
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				f.done <- nil
				return
			case <-tick.C:
			}
			if err := f.publish(channel, 5); err != nil {
				f.done <- err
				return
			}
		}
	}()
	d.t.Cleanup(cancel)
	return f
}

// burst publishes so many messages at once.
func (f *traffic) burst(messages int) *amqp091.Channel {
	f.t.Helper()
	channel := broker.Channel(f.t)
	require.NoError(f.t, channel.Confirm(false))
	require.NoError(f.t, f.publish(channel, messages))
	return channel
}

func (f *traffic) publish(channel *amqp091.Channel, messages int) error {
	var confirms []*amqp091.DeferredConfirmation
	for range messages {
		id := testapp.ID(int(f.published.Add(1)))
		msg, err := f.d.publishing(id)
		if err != nil {
			return err
		}
		confirm, err := channel.PublishWithDeferredConfirm("", *f.queue.Load(), true, false, msg)
		if err != nil {
			return err
		}
		confirms = append(confirms, confirm)
	}
	for _, confirm := range confirms {
		if !confirm.Wait() {
			return errors.New("not confirmed")
		}
	}
	return nil
}

// publishing is a message of Watermill, or of an app by hand.
func (d *deployment) publishing(id string) (amqp091.Publishing, error) {
	if d.way == nil {
		return amqp.DefaultMarshaler{}.Marshal(message.NewMessage(id, []byte(id)))
	}
	headers := maps.Clone(d.way.headers)
	if headers == nil {
		headers = amqp091.Table{}
	}
	headers["tenant"] = int64(7) // Watermill's marshaler does not read it
	return amqp091.Publishing{Headers: headers, DeliveryMode: amqp091.Persistent, Body: []byte(id)}, nil
}

// moveTo sends what follows to another queue, and returns once all that went to the old one is confirmed.
func (f *traffic) moveTo(queue string) {
	f.t.Helper()
	f.queue.Store(&queue)
	f.more(100)
}

// more waits until so many more messages are published.
func (f *traffic) more(messages int64) {
	f.t.Helper()
	want := f.published.Load() + messages
	broker.Eventually(f.t, patience, func() bool { return f.published.Load() >= want || len(f.done) > 0 }, "the traffic goes on")
	require.Empty(f.t, f.done, "the traffic has stopped")
}

// balance stops the traffic and the instances: every message that was published is processed, none is on a queue, none
// was redelivered without end. The management API would show unacknowledged messages up to five seconds late.
func (d *deployment) balance(f *traffic, queues ...string) {
	d.t.Helper()
	f.cancel()
	require.NoError(d.t, <-f.done)
	published := int(f.published.Load())
	d.processed.Wait(d.t, published, patience)
	assert.Equal(d.t, published, d.processed.Len(), "identities")
	assert.Empty(d.t, d.unreadable.Counts(), "deliveries that a stock instance could not read")
	assert.LessOrEqual(d.t, most(d.deliveries), bounded, "deliveries of one message")
	nothing := func() bool { return sum(d.ready(queues...)) == 0 }
	broker.Eventually(d.t, patience, nothing, "nothing is left on the queues")
	for _, i := range d.started { // what an instance has and does not handle comes back to its queue
		i.stop()
	}
	assert.True(d.t, nothing(), "%v", d.ready(queues...))
	inFlight := 0
	for _, i := range d.started {
		inFlight += i.handlers
	}
	assert.LessOrEqual(d.t, len(d.processed.Twice()), inFlight, "twice: at most one message of each handler that has stopped")
	d.t.Logf("published=processed=%d twice=%d, most deliveries of one message=%d", published, len(d.processed.Twice()), most(d.deliveries))
}

// list returns the app's queues with their messages, ready and unacknowledged ones, as `rabbitmqctl list_queues name
// messages` does. The figures are up to five seconds old.
func (d *deployment) list() map[string]int {
	d.t.Helper()
	messages := map[string]int{}
	queues, err := broker.Management(d.t).ListQueuesWithParameters(url.Values{"columns": {"name,messages"}})
	require.NoError(d.t, err)
	for _, q := range queues {
		if strings.Contains(q.Name, d.prefix) {
			messages[q.Name] = q.Messages
		}
	}
	return messages
}

// waitUntilReady waits until one message at least is ready on one of the queues.
func (d *deployment) waitUntilReady(queues ...string) {
	d.t.Helper()
	broker.Eventually(d.t, patience, func() bool { return sum(d.ready(queues...)) > 0 }, "messages wait on %v", queues)
}

// waitUntilEmpty waits until nothing is ready on the queues for a second. Where list_queues shows 0 for ten seconds, this
// was so before: its figure of a quorum queue is up to five seconds old.
func (d *deployment) waitUntilEmpty(queues ...string) {
	d.t.Helper()
	since := time.Now()
	broker.Eventually(d.t, patience, func() bool {
		if sum(d.ready(queues...)) > 0 {
			since = time.Now()
		}
		return time.Since(since) > time.Second
	}, "nothing is on %v", queues)
}

// ready returns how many messages of the queues no consumer has, now.
func (d *deployment) ready(queues ...string) map[string]int {
	d.t.Helper()
	messages := map[string]int{}
	for _, queue := range queues {
		messages[queue] = testapp.Depth(d.t, queue)
	}
	return messages
}

func sum(messages map[string]int) (total int) {
	for _, n := range messages {
		total += n
	}
	return total
}
