// Package order_test has apps that keep the order of messages with one key, through retries and across processes, on a
// broker.
package order_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the bank is down")

var folder string // of the command wmretry

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "order"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(folder)
		os.Exit(code)
	}))
}

func keyOf(msg *message.Message) string { return msg.Metadata.Get("customer") }

// A sink counts the effects of each key, over all apps of a test.
type sink struct {
	mu         sync.Mutex
	last       map[string]int // the highest number of each key
	next       map[string]int // which number may follow, after a rewind
	effects    map[string]int
	skipped    map[string]bool
	inversions []string
	gaps       []string
	rewinds    int
}

func newSink() *sink {
	return &sink{last: map[string]int{}, next: map[string]int{}, effects: map[string]int{}, skipped: map[string]bool{}}
}

func identity(key string, n int) string { return fmt.Sprintf("%s/%d", key, n) }

// effect is the success of a message. Each key goes up by one, over those that were skipped, or back and then up again
// by one.
func (s *sink) effect(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, want := s.last[key], s.next[key]
	for s.skipped[identity(key, want)] {
		want++
	}
	switch {
	case n == want:
	case n > want && before+1 < n: // never handled in between
		s.gaps = append(s.gaps, fmt.Sprintf("%s: %d after %d", key, n, want-1))
	case n > want:
		s.inversions = append(s.inversions, fmt.Sprintf("%s: %d after %d", key, n, want-1))
	default:
		s.rewinds++
	}
	s.next[key] = n + 1
	s.last[key] = max(before, n)
	s.effects[identity(key, n)]++
}

func (s *sink) skip(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skipped[identity(key, n)] = true
}

func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.effects)
}

// inOrder asserts that no message has overtaken another one of its key.
func (s *sink) inOrder(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Empty(t, s.inversions, "inversions")
	assert.Empty(t, s.gaps, "gaps")
}

// body is the payload of the messages of a test.
type body struct {
	Key    string
	Number int
	Fails  int // times
}

// numbered is the message of a key with a number, which fails so many times.
func numbered(key string, n, fails int) *message.Message {
	payload, _ := json.Marshal(body{Key: key, Number: n, Fails: fails})
	msg := message.NewMessage(watermill.NewUUID(), payload)
	msg.Metadata.Set("customer", key)
	return msg
}

func messages(keys, each int, fails func(key, n int) int) (all []*message.Message) {
	for n := range each {
		for k := range keys {
			all = append(all, numbered(fmt.Sprintf("customer-%d", k), n, fails(k, n)))
		}
	}
	return all
}

func sometimes(share float64) func(int, int) int {
	return func(int, int) int {
		if rand.Float64() < share {
			return 1 + rand.IntN(2)
		}
		return 0
	}
}

func never(int, int) int { return 0 }

// handle is the handler of the tests: it fails as often as the message wants.
func (s *sink) handle(msg *message.Message) error {
	var b body
	if err := json.Unmarshal(msg.Payload, &b); err != nil {
		return backoff.Permanent(err)
	}
	if testapp.Failures(msg) < b.Fails {
		return errDown
	}
	s.effect(b.Key, b.Number)
	return nil
}

// A world is the broker's side of a test: a topic with partitions, which several apps share.
type world struct {
	t      *testing.T
	config config.Config
	queue  string
	sink   *sink
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := testapp.Config(t, testapp.Schedule(50*time.Millisecond, 100*time.Millisecond, 200*time.Millisecond))
	w := worldOf(t, c)
	w.queue += "_" + c.Prefix
	return w
}

func worldOf(t *testing.T, c config.Config) *world {
	return &world{t: t, config: c, queue: "orders", sink: newSink()}
}

// An app is one process with an ordered handler.
type app struct {
	*testapp.App
	stop func() // closes the router and the connection
}

// start starts an app with 4 partitions, or as the options say.
func (w *world) start(options retry.Options, handle message.NoPublishHandlerFunc) *app {
	w.t.Helper()
	a := &app{App: testapp.Connect(w.t, w.config)}
	options.Order.Key = keyOf
	options.Order.Partitions = cmp.Or(options.Order.Partitions, 4)
	a.AddConsumerHandler(a.Router, "billing", w.queue, handle, options)
	stop := testapp.Start(w.t, a.Router)
	a.stop = sync.OnceFunc(func() {
		stop()
		require.NoError(w.t, a.Close())
		assert.Empty(w.t, a.Log.Lines("the queue of the commands was deleted"))
	})
	w.t.Cleanup(a.stop)
	return a
}

// publish publishes messages one after the other, over the app's publisher.
func (w *world) publish(a *app, all []*message.Message) {
	w.t.Helper()
	require.NoError(w.t, a.Publisher().Publish(w.queue, all...))
}

// partitions are the names of the first n partitions.
func (w *world) partitions(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s.order.%d", w.queue, i))
	}
	return all
}

// settled waits until the partitions and the work queue are empty.
func (w *world) settled(partitions int) {
	w.t.Helper()
	for _, queue := range append(w.partitions(partitions), w.queue) {
		testapp.Eventually(w.t, func() bool { return testapp.Depth(w.t, queue) == 0 }, "%s is empty", queue)
	}
}

// refused is the error of an app with other options.
func (w *world) refused(options retry.Options) error {
	w.t.Helper()
	a := testapp.Connect(w.t, w.config)
	options.Order.Key, options.Order.Partitions = keyOf, cmp.Or(options.Order.Partitions, 4)
	subscriber, err := a.Subscriber("billing", options)
	require.NoError(w.t, err)
	_, err = subscriber.Subscribe(w.t.Context(), w.queue)
	return err
}
