package conformance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
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
	backend pubsub.Backend
	name    string
	score   *score
	ledger  *ledger
}

func newFixture(t *testing.T, e registry.Entry, url string, s *score) *fixture {
	t.Helper()
	name := "c" + strings.ToLower(rand.Text()[:8])
	return &fixture{
		t: t, Entry: e, url: url, backend: e.Open(url, process.Logger()), name: name, score: s, ledger: newLedger(),
	}
}

// app returns the app that most cases start from.
func (f *fixture) app(delays ...time.Duration) pubsub.App {
	return pubsub.App{
		Group: "g" + f.name, Prefix: "p" + f.name, Policy: retry.Policy{Schedule: backoff.Schedule(delays)},
		Lease: 3 * time.Second,
	}
}

// topic returns a topic of the case.
func (f *fixture) topic(i int) string { return fmt.Sprintf("t%s-%d", f.name, i) }

// topics returns the topic of each of the handlers, which share the messages of the case. Without groups, two handlers
// of one topic would each get all messages.
func (f *fixture) topics(handlers int) []string {
	topics := make([]string, handlers)
	for i := range topics {
		topics[i] = f.topic(0)
		if f.Expect.NoGroups {
			topics[i] = f.topic(i)
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
	app pubsub.App, topics, groups []string, delays ...time.Duration,
) (*message.Router, retry.Connection) {
	f.t.Helper()
	f.cleanUp(app, topics, groups, delays...)
	retries, err := f.backend.Connect(app)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { require.NoError(f.t, retries.Close()) })
	return newRouter(), retries
}

// cleanUp removes what an app makes on a server that other apps use, at the end of the case.
func (f *fixture) cleanUp(app pubsub.App, topics, groups []string, delays ...time.Duration) {
	cleaner, shared := f.backend.(pubsub.Cleaner)
	if !shared {
		return
	}
	f.t.Cleanup(func() {
		app.Policy.Schedule = slices.Concat(app.Policy.Schedule, delays)
		for _, group := range append(groups, app.Group) {
			app.Group = group
			require.NoError(f.t, cleaner.Clean(app, slices.Compact(slices.Sorted(slices.Values(topics)))))
		}
	})
}

func newRouter() *message.Router {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, process.Logger())
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
	app pubsub.App, topics []string, handle message.NoPublishHandlerFunc, options ...retry.Options,
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
		hangs := time.AfterFunc(time.Minute, func() { _ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) })
		defer hangs.Stop()
		require.NoError(a.t, a.router.Close())
		require.NoError(a.t, <-a.done)
		require.NoError(a.t, a.retries.Close())
	})
}

func id(i int) string { return fmt.Sprintf("%05d", i) }

func ids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = id(i)
	}
	return all
}

// publish publishes a message for each id, on each of the topics in turn, with Watermill's own publisher.
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

// publishMany publishes with several publishers.
func (f *fixture) publishMany(topics, ids []string) {
	f.t.Helper()
	const publishers = 16
	faults := make([]error, publishers)
	var all sync.WaitGroup
	for i := range publishers {
		part := ids[i*len(ids)/publishers : (i+1)*len(ids)/publishers]
		all.Go(func() { faults[i] = f.send(topics, part) })
	}
	all.Wait()
	require.NoError(f.t, errors.Join(faults...))
}

// await waits until n messages were tried after so many failures. Those that are missing then are lost.
func (f *fixture) await(n, failures int, within time.Duration) {
	f.t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		got := f.ledger.reached(failures)
		if got >= n {
			return
		}
		if time.Now().After(deadline) {
			f.score.add("lost", n-got)
			require.Failf(f.t, "messages are lost", "%d of %d came after %d failures within %v", got, n, failures,
				within)
		}
	}
}

// missing waits for n messages that were tried after so many failures, and returns how many did not come.
func (f *fixture) missing(n, failures int) int {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if f.ledger.reached(failures) >= n {
			return 0
		}
	}
	return n - f.ledger.reached(failures)
}

// zero sets a number of the report that must be 0.
func (f *fixture) zero(field string, n int, why string) {
	f.t.Helper()
	f.score.add(field, n)
	if n != 0 {
		f.t.Errorf("%d %s", n, why)
	}
}

func (f *fixture) eventually(what string, is func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		require.True(f.t, time.Now().Before(deadline), "within %v: %s", patience, what)
	}
}

// comeBack waits until n messages were tried after so many failures, none early. Call it when no other message is on
// its way.
func (f *fixture) comeBack(n, failures int, schedule backoff.Schedule) {
	f.t.Helper()
	f.await(n, failures, patience)
	f.checkNeverEarly(schedule)
	f.settle()
}

// checkNeverEarly checks that each retry came at least its delay after the failure before it, by the backend's clock.
func (f *fixture) checkNeverEarly(schedule backoff.Schedule) {
	f.t.Helper()
	f.zero("early", f.early(schedule), "retries were early")
}

// early counts the retries that came before their delay was over.
func (f *fixture) early(schedule backoff.Schedule) (count int) {
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
				if count++; count <= 3 {
					f.t.Logf("message %s, retry %d of %v, came %v too early: after %v by the monotonic clock, %v by "+
						"the wall clock", id, one.failures, delay, early, monotonic, wall)
				}
			}
		}
	}
	return count
}

// settle logs the duplicates. Call it when no message is on its way any more.
func (f *fixture) settle() {
	f.t.Helper()
	if duplicates := f.ledger.duplicates(); duplicates > 0 {
		f.t.Logf("%d duplicates", duplicates)
	}
}

func (f *fixture) publishWith(publisher message.Publisher, topic string, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		require.NoError(f.t, publisher.Publish(topic, message.NewMessage(id, []byte("order "+id))))
	}
}
