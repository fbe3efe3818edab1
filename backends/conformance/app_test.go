package conformance

import (
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backends/conformance/process"
	"github.com/tieredretry/watermill-retry/retry"
)

// app is a process of an app: a router with handlers, and their retries.
type app struct {
	retry.Connection
	t      *testing.T
	router *message.Router
	logs   *watermill.CaptureLoggerAdapter
	ended  <-chan error // nil before run
	stop   func()       // at the end of the test, too
	topic  string       // of bills and publish
}

// connect connects an app. Its handlers are added before run.
func connect(t *testing.T, open func(watermill.LoggerAdapter) (retry.Connection, error)) *app {
	t.Helper()
	logs := watermill.NewCaptureLogger()
	retries, err := open(logs)
	require.NoError(t, err)
	a := &app{Connection: retries, t: t, router: newRouter(logs), logs: logs, topic: orders}
	a.stop = sync.OnceFunc(func() {
		hangs := time.AfterFunc(time.Minute, func() { _ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) })
		defer hangs.Stop()
		if a.ended != nil {
			assert.NoError(t, a.router.Close())
			assert.NoError(t, <-a.ended)
		}
		assert.NoError(t, a.Close())
		for _, line := range logs.Captured()[watermill.ErrorLogLevel] {
			if t.Failed() {
				t.Log(line.Msg, line.Err, line.Fields)
			}
		}
	})
	t.Cleanup(a.stop)
	return a
}

// handle adds a handler.
func (a *app) handle(name, topic string, handle message.NoPublishHandlerFunc, options ...retry.Options) *app {
	a.AddConsumerHandler(a.router, name, topic, handle, options...)
	return a
}

// bills adds the handler "bill" of the topic, and runs the app.
func (a *app) bills(handle message.NoPublishHandlerFunc, options ...retry.Options) *app {
	a.t.Helper()
	return a.handle("bill", a.topic, handle, options...).run()
}

func (a *app) run() *app {
	a.t.Helper()
	var err error
	a.ended, err = process.Serve(noContext, a.router)
	require.NoError(a.t, err)
	return a
}

// The topics of the apps that bills runs, whose group is billing.
const (
	orders     = "orders"
	deadOrders = "retry.dead.billing.orders"
)

// publish publishes to the topic, with the connection's publisher.
func (a *app) publish(ids ...string) {
	a.t.Helper()
	a.publishTo(a.topic, ids...)
}

func (a *app) publishTo(topic string, ids ...string) {
	a.t.Helper()
	for _, id := range ids {
		require.NoError(a.t, a.Publisher().Publish(topic, message.NewMessage(id, []byte("order "+id))))
	}
}

// logged returns the lines of a level that have a text.
func (a *app) logged(level watermill.LogLevel, text string) (found []watermill.CapturedMessage) {
	for _, line := range a.logs.Captured()[level] {
		if strings.Contains(line.Msg, text) {
			found = append(found, line)
		}
	}
	return found
}

// flood publishes messages, each until publish reports that the server has it. taken counts these.
func flood(publish func(id string) bool) (taken func() int, stop func()) {
	var count atomic.Int64
	var publishers sync.WaitGroup
	ended := make(chan struct{})
	for n := range 4 {
		publishers.Go(func() {
			tick := time.Tick(10 * time.Millisecond)
			for i := 0; ; i++ {
				select {
				case <-ended:
					return
				case <-tick:
				}
				for !publish(fmt.Sprintf("%d-%d", n, i)) { // it may be there: then it comes twice
					select {
					case <-ended:
						return
					default:
					}
				}
				count.Add(1)
			}
		})
	}
	return func() int { return int(count.Load()) }, func() { close(ended); publishers.Wait() }
}

func nothing(*message.Message) error { return nil }
