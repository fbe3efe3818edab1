package conformance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

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

func handlerName(i int) string { return fmt.Sprintf("billing-%d", i) }

// connect connects an app. The groups and delays are those of its handlers, besides the app's.
func (f *fixture) connect(config pubsub.App, topics, groups []string, delays ...time.Duration) *app {
	f.t.Helper()
	f.cleanUp(config, topics, groups, delays...)
	return connect(f.t, func(watermill.LoggerAdapter) (retry.Connection, error) { return f.backend.Connect(config) })
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

func newRouter(logger watermill.LoggerAdapter) *message.Router {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, logger)
	if err != nil {
		panic(err)
	}
	return router
}

// run starts a handler on each of the topics.
func (f *fixture) run(
	config pubsub.App, topics []string, handle message.NoPublishHandlerFunc, options ...retry.Options,
) *app {
	f.t.Helper()
	a := f.connect(config, topics, nil)
	for i, topic := range topics {
		a.handle(handlerName(i), topic, handle, options...)
	}
	return a.run()
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
func (f *fixture) await(n, failures int) {
	f.t.Helper()
	if missing := f.missing(n, failures); missing > 0 {
		f.score.add("lost", missing)
		require.Failf(f.t, "messages are lost", "%d of %d did not come after %d failures", missing, n, failures)
	}
}

// missing waits for n messages that were tried after so many failures, and returns how many did not come.
func (f *fixture) missing(n, failures int) int {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
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

func (f *fixture) eventually(words string, is func() bool) { f.t.Helper(); await(f.t, is, "%s", words) }

// comeBack waits until n messages were tried after so many failures, none early. Call it when no other message is on
// its way.
func (f *fixture) comeBack(n, failures int, schedule backoff.Schedule) {
	f.t.Helper()
	f.await(n, failures)
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
			delay := schedule[one.failures-1]
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
