package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	topic   = "orders"
	handler = "billing"
)

var errDown = errors.New("the bank is down")

// publishedCopy is a copy that the middleware has published, with the state of its context at that time.
type publishedCopy struct {
	topic    string
	msg      *message.Message
	ctxErr   error
	deadline time.Time
}

// recorder is a publisher that keeps every message. If fail returns an error, Publish returns the error and keeps nothing.
type recorder struct {
	mu     sync.Mutex
	copies []publishedCopy
	tries  int
	fail   func(try int) error
}

func (r *recorder) Publish(topic string, messages ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	if r.fail != nil {
		if err := r.fail(r.tries); err != nil {
			return err
		}
	}
	for _, msg := range messages {
		deadline, _ := msg.Context().Deadline()
		r.copies = append(r.copies, publishedCopy{topic, msg, msg.Context().Err(), deadline})
	}
	return nil
}

func (r *recorder) Close() error { return nil }

func (r *recorder) only(t *testing.T) publishedCopy {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.copies, 1)
	return r.copies[0]
}

type settings = eventtest.Settings

// configOf returns settings with topics like 1s.orders and dead.orders.
func configOf(publisher message.Publisher) settings {
	return settings{
		Publisher: publisher, Destination: eventtest.Destination,
		Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, 5 * time.Second, 5 * time.Second, time.Minute}},
	}
}

// setup makes the middleware and the publisher that records its copies.
func setup(t testing.TB, change ...func(*settings)) (*retrymw.TieredRetry, *recorder) {
	t.Helper()
	sent := &recorder{}
	config := configOf(sent)
	for _, c := range change {
		c(&config)
	}
	tiered, err := config.Make(nil)
	require.NoError(t, err)
	return tiered, sent
}

// tiersWait makes the middleware behave as on RabbitMQ.
func tiersWait(c *settings) { c.TiersWait = true }

// routerContext returns the context that a router sets on the messages of a handler. Only a router can make it.
func routerContext(t testing.TB) context.Context {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router := message.NewDefaultRouter(watermill.NopLogger{})
	contexts := make(chan context.Context, 1)
	router.AddConsumerHandler(handler, topic, pubSub, func(msg *message.Message) error {
		contexts <- msg.Context()
		return nil
	})
	require.NoError(t, pubSub.Publish(topic, message.NewMessage("1", nil)))
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	ctx := context.WithoutCancel(<-contexts)
	require.NoError(t, router.Close())
	require.NoError(t, <-done)
	return ctx
}

func messageOf(ctx context.Context) *message.Message {
	msg := message.NewMessageWithContext(ctx, "uuid-1", []byte("order 1"))
	msg.Metadata.Set("trace", "abc")
	return msg
}

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

// redelivered returns the message that comes back from the tier of a copy.
func redelivered(ctx context.Context, c publishedCopy) *message.Message {
	msg := c.msg.Copy()
	msg.SetContext(ctx)
	return msg
}

// logRecorder is a logger that keeps all lines.
type logRecorder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logRecorder) add(msg string, err error, fields watermill.LogFields) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = fmt.Fprintln(&l.text, msg, err, fields)
}
func (l *logRecorder) Error(msg string, err error, fields watermill.LogFields) {
	l.add(msg, err, fields)
}
func (l *logRecorder) Info(msg string, fields watermill.LogFields)      { l.add(msg, nil, fields) }
func (l *logRecorder) Debug(msg string, fields watermill.LogFields)     { l.add(msg, nil, fields) }
func (l *logRecorder) Trace(msg string, fields watermill.LogFields)     { l.add(msg, nil, fields) }
func (l *logRecorder) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func (l *logRecorder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
