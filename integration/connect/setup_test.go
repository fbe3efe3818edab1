// Package connect_test has whole apps on Connect, on a broker.
package connect_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

const soon = 60 * time.Second // much longer than any of it takes

var errDown = errors.New("the bank is down")

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(broker.LeaksOfProxies(),
		// A router whose Run returns an error waits for its handlers, which never run.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/message.(*Router).watchAllHandlersStopped.func1"),
	)...)
}

// A shop is an app on Connect. Its queues and exchanges have names that no other test uses.
type shop struct {
	retry.Connection
	t      testing.TB
	name   string
	log    *testapp.Log
	router *message.Router
}

// names returns the names and the configuration of a shop with one queue for each topic.
func names(t testing.TB) (string, config.Config) {
	t.Helper()
	name := broker.Name(t, "t")
	broker.Clean(t, name)
	return name, configOf(t, name)
}

func configOf(t testing.TB, name string) config.Config {
	return config.Config{
		AMQP:     amqp.NewDurableQueueConfig(broker.URL(t)),
		Policy:   retry.Policy{Schedule: backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond}},
		Settings: rabbitmq.Settings{Prefix: name},
	}
}

// fanOut gives each topic an exchange. Each handler needs a Group.
func fanOut(b *config.Config) {
	b.AMQP = amqp.NewDurablePubSubConfig(b.AMQP.Connection.AmqpURI, nil)
}

// open returns a connected shop whose router does not run yet.
func open(t testing.TB, change ...func(*config.Config)) *shop {
	t.Helper()
	name, b := names(t)
	for _, c := range change {
		c(&b)
	}
	return connect(t, name, b)
}

func connect(t testing.TB, name string, b config.Config) *shop {
	t.Helper()
	s := &shop{t: t, name: name, log: &testapp.Log{}}
	var err error
	s.Connection, err = config.Connect(b, s.log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.router = message.NewDefaultRouter(s.log)
	return s
}

// topic returns a topic that only this shop has.
func (s *shop) topic(base string) string { return base + "_" + s.name }

func (s *shop) handle(name, topic string, h message.NoPublishHandlerFunc, options ...retry.Options) *message.Handler {
	return s.AddConsumerHandler(s.router, name, s.topic(topic), h, options...)
}

// run starts the router, which is closed when the test ends, before the connection.
func (s *shop) run() {
	s.t.Helper()
	start(s.t, s.router)
}

// start starts a router, which is closed when the test ends.
func start(t testing.TB, r testapp.Runnable) {
	t.Helper()
	t.Cleanup(testapp.Start(t, r))
}

// publish publishes messages with these UUIDs to a topic.
func (s *shop) publish(topic string, uuids ...string) {
	s.t.Helper()
	require.NoError(s.t, s.Publisher().Publish(s.topic(topic), messages(uuids...)...))
}

func messages(uuids ...string) (all []*message.Message) {
	for _, uuid := range uuids {
		all = append(all, message.NewMessage(uuid, []byte("order "+uuid)))
	}
	return all
}

func ids(n int) (all []string) {
	for i := range n {
		all = append(all, testapp.ID(i))
	}
	return all
}

// failures is how often a message has failed.
func failures(msg *message.Message) int {
	record, _ := retry.ReadRecord(msg.Metadata)
	return record.Failures
}

func eventually(t testing.TB, happened func() bool, what string, args ...any) {
	t.Helper()
	broker.Eventually(t, soon, happened, what, args...)
}

// exists reports whether a queue exists.
func exists(t testing.TB, queue string) bool {
	t.Helper()
	_, err := broker.Channel(t).QueueDeclarePassive(queue, true, false, false, false, nil)
	return err == nil
}

func deleteQueue(t testing.TB, queue string) {
	t.Helper()
	_, err := broker.Channel(t).QueueDelete(queue, false, false, false)
	require.NoError(t, err)
}

// A diary has entries in their order.
type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) add(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.entries)
}
