// Package observe_test tests on a real broker what observers see.
package observe_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/retry"
)

const feedSoon = 2 * time.Minute // much longer than any of it takes

var errFeed = errors.New("the bank is down")

// A feed is an app with an Observer that keeps what it gets.
type feed struct {
	backend.NopObserver
	*testapp.App
	t testing.TB

	mu        sync.Mutex
	observed  backend.Observed
	events    map[string][]retry.Event // by the UUID of their message
	published []backend.Published
}

// Attach implements backend.Observer.
func (f *feed) Attach(o backend.Observed) (backend.Observer, error) {
	f.observed = o
	return nil, nil
}

// Event implements retry.Observer.
func (f *feed) Event(e retry.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events[e.MessageUUID] = append(f.events[e.MessageUUID], e)
}

// Published implements backend.Observer.
func (f *feed) Published(p backend.Published) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.published = append(f.published, p)
}

// openFeed returns a connected app whose router does not run yet.
func openFeed(t testing.TB, change ...func(*config.Config)) *feed {
	t.Helper()
	schedule := testapp.Schedule(100*time.Millisecond, time.Second)
	f := &feed{App: testapp.New(t, append([]func(*config.Config){schedule}, change...)...), t: t,
		events: map[string][]retry.Event{}}
	f.Observe(f)
	return f
}

func (f *feed) handle(name string, h message.NoPublishHandlerFunc, options ...retry.Options) {
	f.AddConsumerHandler(f.Router, name, f.Queue(name), h, options...)
}

// results counts the messages that were published, by kind and result.
func (f *feed) results() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]int{}
	for _, p := range f.published {
		kind := map[bool]string{true: "copy", false: "app"}[p.Copy]
		all[kind+" "+string(p.Result)] += p.Messages
	}
	return all
}

func (f *feed) link(name string) retry.LinkHealth {
	for _, link := range f.Health().Links {
		if link.Name == name {
			return link
		}
	}
	return retry.LinkHealth{}
}

// waiting asks what waits, within a time that is no limit of the test.
func (f *feed) waiting() (map[string]backend.Waiting, error) {
	ctx, cancel := context.WithTimeout(context.Background(), feedSoon)
	defer cancel()
	all, err := f.observed.Waiting(ctx)
	byQueue := map[string]backend.Waiting{}
	for _, w := range all {
		if _, twice := byQueue[w.Queue]; twice {
			err = errors.Join(err, fmt.Errorf("queue %q is there twice", w.Queue))
		}
		byQueue[w.Queue] = w
	}
	return byQueue, err
}

// awaitWaiting waits until the queues have these numbers of messages, and no others are there.
func (f *feed) awaitWaiting(want map[string]int) map[string]backend.Waiting {
	f.t.Helper()
	var last map[string]backend.Waiting
	var failed error
	got := map[string]int{}
	broker.Eventually(f.t, feedSoon, func() bool {
		if last, failed = f.waiting(); failed != nil {
			return false
		}
		clear(got)
		for queue, w := range last {
			got[feedKindOf(w)+" "+strings.ReplaceAll(queue, f.Name, "T")] = w.Messages
		}
		return maps.Equal(got, want)
	}, "what waits: %v, want %v, %v", &got, want, &failed)
	return last
}

func feedKindOf(w backend.Waiting) string {
	if w.Tier > 0 {
		return string(w.Kind) + " " + w.Tier.String()
	}
	return string(w.Kind)
}
