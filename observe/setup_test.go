package observe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	topic   = "orders"
	handler = "billing"

	// took is how long the handlers of the tests take.
	took = 40 * time.Millisecond
)

var errDown = errors.New("the bank is down")

// app is what a Connection consists of, for an observer: the retry middleware, its publisher, and a Health of the test.
type app struct {
	t         testing.TB
	observers backend.Observers
	retry     *middleware.TieredRetry
	closed    chan struct{}
	logged    *lines
	system    string
	waiting   backend.Waiter

	mu     sync.Mutex
	health func() retry.Health
	refuse func() error // nil, or whether Publish refuses
	copies []*message.Message
}

func newApp(t testing.TB, change ...func(*eventtest.Settings)) *app {
	t.Helper()
	a := &app{t: t, closed: make(chan struct{}), logged: &lines{}, system: "rabbitmq"}
	t.Cleanup(a.end)
	config := eventtest.Settings{
		Publisher: a, Traits: backend.Traits{Observers: &a.observers, TiersWait: true},
		Policy: retry.Policy{MaxHold: time.Minute, Schedule: backoff.Schedule{time.Second, 5 * time.Second, time.Minute}},
	}
	for _, c := range change {
		c(&config)
	}
	var err error
	a.retry, err = config.Make(nil)
	require.NoError(t, err)
	return a
}

// end closes the connection.
func (a *app) end() {
	select {
	case <-a.closed:
	default:
		close(a.closed)
	}
}

// observe attaches an observer.
func (a *app) observe(o retry.Observer) *app {
	a.observers.Attach(o, backend.Observed{
		System: a.system, Health: a.Health, Waiting: a.waiting, Logger: a.logged, Closed: a.closed,
	})
	return a
}

func (a *app) Health() retry.Health {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.health == nil {
		return retry.Health{}
	}
	return a.health()
}

// subscriptions sets the Health of the app.
func (a *app) subscriptions(all ...retry.SubscriptionHealth) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.health = func() retry.Health { return retry.Health{Subscriptions: all} }
}

// Publish takes the copies.
func (a *app) Publish(_ string, messages ...*message.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		if err := a.refuse(); err != nil {
			return err
		}
	}
	a.copies = append(a.copies, messages...)
	return nil
}

func (a *app) Close() error { return nil }

// last returns the last copy as it comes back.
func (a *app) last(ctx context.Context) *message.Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	msg := newMessage(ctx)
	msg.Metadata = a.copies[len(a.copies)-1].Metadata
	return msg
}

// deliver calls a handler with the message, and then with each of its copies. The calls have these results.
func (a *app) deliver(msg *message.Message, results ...error) {
	for i, result := range results {
		if i > 0 {
			msg = a.last(msg.Context())
		}
		a.handle(msg, func() error {
			time.Sleep(took)
			return result
		})
	}
}

func (a *app) handle(msg *message.Message, h func() error) {
	if _, err := a.retry.Dispatch(func(*message.Message) ([]*message.Message, error) { return nil, h() })(msg); err == nil {
		msg.Ack()
	} else {
		msg.Nack()
	}
}

func newMessage(ctx context.Context) *message.Message {
	return message.NewMessageWithContext(ctx, watermill.NewUUID(), message.Payload("order 1"))
}

// from is the context of a message of a handler.
func from(topic, handler string) context.Context {
	return msgctx.WithOrigin(context.Background(), topic, handler)
}

// lines is a logger that keeps errors.
type lines struct {
	watermill.NopLogger
	mu  sync.Mutex
	all []string
}

func (l *lines) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *lines) Error(text string, err error, _ watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf("%s: %v", text, err))
}

func (l *lines) errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// scrape returns what Prometheus gets, as OpenMetrics.
func scrape(t testing.TB, registry *prometheus.Registry) string {
	t.Helper()
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept", "application/openmetrics-text")
	response := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(response, request)
	require.Equal(t, http.StatusOK, response.Code, response.Body.String())
	require.Contains(t, response.Header().Get("Content-Type"), "application/openmetrics-text")
	return response.Body.String()
}

// samples returns the samples of a metric in a scrape: see samplesOf.
func samples(t testing.TB, registry *prometheus.Registry, name string) []string {
	t.Helper()
	return samplesOf(scrape(t, registry), name)
}

// samplesOf returns the samples of a metric, sorted, without its name and without exemplars. Those of a histogram are of name_sum,
// name_count or name_bucket.
func samplesOf(text, name string) (all []string) {
	for line := range strings.Lines(text) {
		if line, _, _ = strings.Cut(strings.TrimSpace(line), " # "); strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			all = append(all, strings.TrimPrefix(line, name))
		}
	}
	slices.Sort(all)
	return all
}

// register attaches an observer of a new registry to apps.
func register(t testing.TB, config observe.Config, apps ...*app) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	o := observe.Prometheus(registry, config)
	for _, a := range apps {
		a.observe(o)
		require.Empty(t, a.logged.errors())
	}
	return registry
}

// inGoroutine runs f in a goroutine that f may end, and waits for its end.
func inGoroutine(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func exit() { runtime.Goexit() }
