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
	"github.com/tieredretry/watermill-retry/backends/conformance/wait"
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
	ledger  *ledger
}

func newFixture(t *testing.T, e registry.Entry, url string) *fixture {
	t.Helper()
	name := "c" + strings.ToLower(rand.Text()[:8])
	return &fixture{
		t: t, Entry: e, url: url, backend: e.Open(url, process.Logger()), name: name, ledger: newLedger(),
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

// topics returns the topic of each of the handlers, which share the messages of the case.
func (f *fixture) topics(handlers int) []string { return slices.Repeat([]string{f.topic(0)}, handlers) }

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
func (f *fixture) await(n, failures int) { f.t.Helper(); f.ledger.await(f.t, n, failures) }

func (f *fixture) eventually(words string, is func() bool) {
	f.t.Helper()
	wait.Until(f.t, is, "%s", words)
}

// comeBack waits until n messages were tried after so many failures, none early. Call it when no other message is on
// its way.
func (f *fixture) comeBack(n, failures int, schedule backoff.Schedule) {
	f.t.Helper()
	f.await(n, failures)
	f.ledger.neverEarly(f.t, f.Expect.Clock, schedule...)
	if duplicates := f.ledger.duplicates(); duplicates > 0 {
		f.t.Logf("%d duplicates", duplicates)
	}
}
