package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/eventtest"
	retrymw "github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
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

// recorder is the fake of all tests. It is a publisher that keeps every message, and has the log and the events of its
// middleware.
type recorder struct {
	fail  func(try int) error // if it returns an error, Publish returns that, and keeps nothing
	errs  map[string]error    // of Publish, by the tier, or "dead"
	takes time.Duration       // of a publish that is not confirmed
	logs  logRecorder
	began time.Time

	mu     sync.Mutex
	copies []publishedCopy
	tries  int
	tried  []string // each try, as "1s at 10s", counted from began
	events []retry.Event
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
	name, _, _ := strings.Cut(topic, ".")
	r.tried = append(r.tried, name+" at "+time.Since(r.began).Truncate(time.Second).String())
	if err := r.errs[name]; err != nil {
		if err == errUnconfirmed {
			time.Sleep(r.takes)
		}
		return err
	}
	for _, msg := range messages {
		deadline, _ := msg.Context().Deadline()
		r.copies = append(r.copies, publishedCopy{topic, msg, msg.Context().Err(), deadline})
	}
	return nil
}

// while makes Publish return an error as long as something holds.
func while(holds func(try int) bool, err error) func(int) error {
	return func(try int) error {
		if holds(try) {
			return err
		}
		return nil
	}
}

func until(over time.Duration, err error) func(int) error {
	began := time.Now()
	return while(func(int) bool { return time.Since(began) < over }, err)
}

func always(err error) func(int) error { return func(int) error { return err } }

func firstly(err error) func(int) error { return times(1, err) }

func times(n int, err error) func(int) error {
	return while(func(try int) bool { return try <= n }, err)
}

func (r *recorder) Close() error { return nil }

// last returns the copy that was published last.
func (r *recorder) last() publishedCopy { return r.copies[len(r.copies)-1] }

// record returns the record of the copy that was published last.
func (r *recorder) record(t *testing.T) retry.Record {
	t.Helper()
	record, found := retry.ReadRecord(r.last().msg.Metadata)
	require.True(t, found)
	return record
}

// outcomes are those of the events.
func (r *recorder) outcomes() (all []retry.Outcome) {
	for _, e := range r.events {
		all = append(all, e.Outcome)
	}
	return all
}

func (r *recorder) only(t *testing.T) publishedCopy {
	t.Helper()
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
	sent := &recorder{began: time.Now()}
	config := configOf(sent)
	for _, c := range change {
		if c != nil {
			c(&config)
		}
	}
	tiered, err := config.Make(&sent.logs)
	require.NoError(t, err)
	return tiered, sent
}

// tiersWait makes the middleware behave as on RabbitMQ.
func tiersWait(c *settings) { c.TiersWait = true }

// observing keeps the events.
func observing(c *settings) {
	sent := c.Publisher.(*recorder)
	if c.Observers == nil {
		c.Observers = &backend.Observers{}
	}
	c.Observers.Attach(eventtest.OnEvent(func(e retry.Event) {
		sent.mu.Lock()
		defer sent.mu.Unlock()
		sent.events = append(sent.events, e)
	}), backend.Observed{})
}

// bubble is a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// handles gives a message to a handler that returns no error.
func handles(t testing.TB, h message.HandlerFunc, msg *message.Message) {
	t.Helper()
	_, err := h(msg)
	require.NoError(t, err)
}

// routerContext returns the context that a router sets on the messages of a handler, which only a router can make, and
// stops the router.
func routerContext() (ctx context.Context, stop func()) {
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	router := message.NewDefaultRouter(watermill.NopLogger{})
	contexts, over := make(chan context.Context, 1), make(chan struct{})
	router.AddConsumerHandler(handler, topic, pubSub, func(msg *message.Message) error {
		contexts <- msg.Context()
		<-over
		return nil
	})
	_ = pubSub.Publish(topic, message.NewMessage("1", nil))
	go func() { _ = router.Run(context.Background()) }()
	return <-contexts, func() { close(over); _ = router.Close() }
}

// routed is the context of a router that has stopped.
var routed = func() context.Context {
	ctx, stop := routerContext()
	defer stop()
	return context.WithoutCancel(ctx)
}()

func messageOf(ctx context.Context) *message.Message {
	msg := message.NewMessageWithContext(ctx, "uuid-1", []byte("order 1"))
	msg.Metadata.Set("trace", "abc")
	return msg
}

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

func succeed(*message.Message) ([]*message.Message, error) { return nil, nil }

func notCalled(t *testing.T) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler is called")
		return nil, nil
	}
}

// counting is a handler that counts its calls.
func counting(calls *int, err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { *calls++; return nil, err }
}

// producing is a handler that produces messages.
func producing(n int) message.HandlerFunc {
	return func(*message.Message) (all []*message.Message, err error) {
		for range n {
			all = append(all, message.NewMessage("out", nil))
		}
		return all, nil
	}
}

// carrying returns a message with a record.
func carrying(record retry.Record) *message.Message {
	msg := messageOf(routed)
	record.Write(msg.Metadata)
	return msg
}

// redelivered returns the message that comes back from the tier of a copy.
func redelivered(ctx context.Context, c publishedCopy) *message.Message {
	msg := c.msg.Copy()
	msg.SetContext(ctx)
	return msg
}

// each returns a context for one message, where ctx is that of a subscription.
func each(ctx context.Context) context.Context {
	if own := msgctx.Lookup(message.NewMessageWithContext(ctx, "", nil)); own != nil {
		return msgctx.NewContext(ctx, own.Subscription)
	}
	return ctx
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
