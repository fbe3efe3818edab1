package conformance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

const patience = 90 * time.Second

var errDown = errors.New("the service is down")

// fixture is one case on one backend. Its name is unique, and a part of the names of its topics, group and prefix.
type fixture struct {
	t *testing.T
	registry.Entry
	url     string
	backend backends.Backend
	name    string
	score   *score
	ledger  *ledger
}

func newFixture(t *testing.T, e registry.Entry, url string, s *score) *fixture {
	t.Helper()
	name := "c" + strings.ToLower(rand.Text()[:8])
	return &fixture{
		t: t, Entry: e, url: url, backend: e.Open(url, logger()), name: name, score: s, ledger: newLedger(),
	}
}

func logger() watermill.LoggerAdapter {
	if os.Getenv("CONFORMANCE_LOG") != "" {
		return watermill.NewStdLogger(false, false)
	}
	return watermill.NopLogger{}
}

// app returns the app that most cases start from.
func (f *fixture) app(delays ...time.Duration) backends.App {
	return backends.App{
		Group: "g" + f.name, Prefix: "p" + f.name, Schedule: backoff.Schedule(delays),
		Limit: 3 * time.Second, HandlerLimit: 3 * time.Second,
	}
}

// topics returns the topic of each handler.
func (f *fixture) topics(handlers int) []string {
	topics := make([]string, handlers)
	for i := range topics {
		topics[i] = "t" + f.name
		if share := f.Expect.HandlersPerTopic; share > 0 {
			topics[i] = fmt.Sprintf("t%s-%d", f.name, i/share)
		}
	}
	return topics
}

// runningApp is a router with handlers and their retries.
type runningApp struct {
	t       *testing.T
	router  *message.Router
	retries retry.Connection
	done    chan error
	once    sync.Once
}

func handlerName(i int) string { return fmt.Sprintf("billing-%d", i) }

// connect connects an app. The groups and delays are those of its handlers, besides the app's.
func (f *fixture) connect(
	app backends.App, topics, groups []string, delays ...time.Duration,
) (*message.Router, retry.Connection) {
	f.t.Helper()
	if f.Clean != nil {
		f.t.Cleanup(func() {
			cleaned := app
			cleaned.Schedule = slices.Concat(app.Schedule, delays)
			for _, group := range append(groups, app.Group) {
				cleaned.Group = group
				require.NoError(f.t, f.Clean(f.url, cleaned, topics))
			}
		})
	}
	retries, err := f.backend.Connect(app)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, retries.Close()) })
	return newRouter(), retries
}

func newRouter() *message.Router {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, logger())
	if err != nil {
		panic(err)
	}
	return router
}

// launch runs a router whose handlers are added.
func (f *fixture) launch(router *message.Router, retries retry.Connection) *runningApp {
	f.t.Helper()
	a := &runningApp{t: f.t, router: router, retries: retries, done: make(chan error, 1)}
	go func() { a.done <- router.Run(noContext) }()
	select {
	case <-router.Running():
	case err := <-a.done:
		require.NoError(f.t, err, "the router stopped")
	case <-time.After(patience):
		require.Fail(f.t, "the router did not start")
	}
	f.t.Cleanup(a.stop)
	return a
}

// run starts a handler on each of the topics.
func (f *fixture) run(
	app backends.App, topics []string, handle message.NoPublishHandlerFunc, options ...retry.Options,
) *runningApp {
	f.t.Helper()
	router, retries := f.connect(app, topics, nil)
	for i, topic := range topics {
		retries.AddConsumerHandler(router, handlerName(i), topic, handle, options...)
	}
	return f.launch(router, retries)
}

func (a *runningApp) stop() {
	a.once.Do(func() {
		require.NoError(a.t, a.router.Close())
		require.NoError(a.t, <-a.done)
		require.NoError(a.t, a.retries.Close())
	})
}

func id(i int) string { return fmt.Sprintf("%05d", i) }

// publish publishes a message for each id, on each of the topics in turn.
func (f *fixture) publish(topics []string, ids ...string) {
	f.t.Helper()
	require.NoError(f.t, f.send(topics, ids))
}

func (f *fixture) send(topics, ids []string) error {
	publisher, err := f.backend.Publisher()
	if err != nil {
		return err
	}
	for i, id := range ids {
		if err := publisher.Publish(topics[i%len(topics)], message.NewMessage(id, []byte("order "+id))); err != nil {
			return errors.Join(err, publisher.Close())
		}
	}
	return publisher.Close()
}

// deadLetters subscribes to the dead letters of a handler, and returns a function that waits for the next.
func (f *fixture) deadLetters(app backends.App, handler, topic string) func() *message.Message {
	f.t.Helper()
	subscriber, topic, err := f.backend.DeadLetters(app, handler, topic)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = subscriber.Close() })
	in, err := subscriber.Subscribe(noContext, topic)
	require.NoError(f.t, err)
	return func() *message.Message {
		f.t.Helper()
		select {
		case msg := <-in:
			require.NotNil(f.t, msg)
			msg.Ack()
			return msg
		case <-time.After(patience):
			require.Fail(f.t, "no dead letter came")
			return nil
		}
	}
}

// try is one call of a handler.
type try struct {
	id       string
	failures int // before this call
	at       time.Time
	record   retry.Record
}

// ledger contains the tries of each message, by the message's id.
type ledger struct {
	mu    sync.Mutex
	tries map[string][]try
}

func newLedger() *ledger { return &ledger{tries: map[string][]try{}} }

func (l *ledger) add(msg *message.Message) try {
	record, _ := retry.ReadRecord(msg.Metadata)
	one := try{id: msg.UUID, failures: record.Failures, at: time.Now(), record: record}
	l.put(one)
	return one
}

// failing is a handler that fails this often for each message, and never for the one named last.
func (l *ledger) failing(times int) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if one := l.add(msg); one.failures < times && one.id != "last" {
			return errDown
		}
		return nil
	}
}

func (l *ledger) put(one try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries[one.id] = append(l.tries[one.id], one)
}

func (l *ledger) all() map[string][]try {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.tries)
	for id, tries := range all {
		all[id] = append([]try(nil), tries...)
	}
	return all
}

// reached counts the messages that were tried after so many failures.
func (l *ledger) reached(failures int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, tries := range l.tries {
		for _, one := range tries {
			if one.failures >= failures {
				n++
				break
			}
		}
	}
	return n
}

func (l *ledger) duplicates() int {
	n := 0
	for _, tries := range l.all() {
		seen := map[int]bool{}
		for _, one := range tries {
			if seen[one.failures] {
				n++
			}
			seen[one.failures] = true
		}
	}
	return n
}

// await waits until n messages were tried after so many failures.
func (f *fixture) await(n, failures int, within time.Duration) {
	f.t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		got := f.ledger.reached(failures)
		if got >= n {
			return
		}
		if time.Now().After(deadline) {
			f.score.add(n-got, 0)
			require.Failf(f.t, "messages are lost", "%d of %d came after %d failures within %v", got, n, failures, within)
		}
	}
}

// comeBack waits until n messages were tried after so many failures, none early, and counts the duplicates. Call it when
// no other message is on its way.
func (f *fixture) comeBack(n, failures int, schedule backoff.Schedule) {
	f.t.Helper()
	f.await(n, failures, patience)
	f.checkNeverEarly(schedule)
	f.settle()
}

// checkNeverEarly checks that each retry came at least its delay after the failure before it, by the backend's clock.
func (f *fixture) checkNeverEarly(schedule backoff.Schedule) {
	f.t.Helper()
	for id, tries := range f.ledger.all() {
		failed := map[int]time.Time{}
		for _, one := range tries {
			if _, known := failed[one.failures]; !known {
				failed[one.failures] = one.at
			}
			before, known := failed[one.failures-1]
			if !known {
				continue
			}
			delay, _ := schedule.Delay(one.failures)
			monotonic, wall := one.at.Sub(before), one.at.Round(0).Sub(before.Round(0))
			if early := f.Expect.Clock.Early(delay, monotonic, wall); early > 0 {
				f.t.Errorf("message %s, retry %d of %v came %v too early: after %v by the monotonic clock, %v by the wall clock",
					id, one.failures, delay, early, monotonic, wall)
			}
		}
	}
}

// settle counts the duplicates. Call it when no message is on its way any more.
func (f *fixture) settle() {
	f.t.Helper()
	duplicates := f.ledger.duplicates()
	f.score.add(0, duplicates)
	if duplicates > 0 {
		f.t.Logf("%d duplicates", duplicates)
	}
}
