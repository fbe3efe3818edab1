package observe_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/observe"
)

const (
	soon    = time.Minute
	topic   = "orders"
	handler = "billing"
)

var errDown = errors.New("the bank is down")

// app is what a Connection consists of, for an observer.
type app struct {
	t         testing.TB
	observers middleware.Observers
	retry     *middleware.TieredRetry
	closed    chan struct{}
	logged    *lines

	mu      sync.Mutex
	health  middleware.Health
	refuse  func() error
	copies  []*message.Message
	waiting middleware.Waiter
}

func newApp(t testing.TB, change ...func(*middleware.TieredRetryConfig)) *app {
	t.Helper()
	a := &app{t: t, closed: make(chan struct{}), logged: &lines{}}
	config := middleware.TieredRetryConfig{
		Publisher: a, Observers: &a.observers, MaxHold: time.Minute, TiersWait: true,
		Schedule: backoff.Schedule{time.Second, 5 * time.Second, time.Minute},
		GenerateRetryDestination: func(p middleware.RetryDestinationParams) (middleware.Destination, error) {
			return middleware.Destination{Topic: p.Tier.String()}, nil
		},
		GenerateDeadLetterDestination: func(middleware.DeadLetterDestinationParams) (middleware.Destination, error) {
			return middleware.Destination{Topic: "dead"}, nil
		},
	}
	for _, c := range change {
		c(&config)
	}
	var err error
	a.retry, err = middleware.NewTieredRetry(config, nil)
	require.NoError(t, err)
	return a
}

// observed is the app as that of a Connection to RabbitMQ.
func (a *app) observed() middleware.Observed {
	return middleware.Observed{System: "rabbitmq", Health: a.Health, Waiting: a.waiting, Logger: a.logged, Closed: a.closed}
}

func (a *app) observe(o middleware.Observer) *app {
	a.observers.Attach(o, a.observed())
	return a
}

func (a *app) Health() middleware.Health {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.health
}

func (a *app) setHealth(h middleware.Health) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.health = h
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

// deliver calls a handler that returns the errors, one after the other, with the message and then with its copies.
func (a *app) deliver(msg *message.Message, errs ...error) {
	a.t.Helper()
	for i, result := range errs {
		_, err := a.retry.Middleware(func(*message.Message) ([]*message.Message, error) {
			time.Sleep(time.Microsecond)
			return nil, result
		})(msg)
		require.NoError(a.t, err)
		if i < len(errs)-1 {
			last := a.copies[len(a.copies)-1]
			msg = newMessage(msg.Context())
			msg.Metadata = last.Metadata
		}
	}
}

func newMessage(ctx context.Context) *message.Message {
	return message.NewMessageWithContext(ctx, watermill.NewUUID(), message.Payload("order 1"))
}

// from is the context of a message of a handler.
func from(topic, handler string) context.Context {
	return middleware.WithOrigin(context.Background(), topic, handler)
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

// series returns the series of a metric with their values, sorted, without buckets and exemplars.
func series(t testing.TB, registry *prometheus.Registry, name string) (all []string) {
	t.Helper()
	for line := range strings.Lines(scrape(t, registry)) {
		of, _, _ := strings.Cut(line, "{")
		of, _, _ = strings.Cut(of, " ")
		if of == name {
			line, _, _ = strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, name)), " # ")
			all = append(all, line)
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
