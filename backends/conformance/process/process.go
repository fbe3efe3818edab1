// Package process runs an app of the conformance suite in a process of its own, which the suite kills, stops, and runs
// side by side with others.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// The lines that a process writes to stdout.
const (
	Try    = "try %d %d %q" // a call: failures before it, its time in Unix nanoseconds, and the UUID of the message
	Copied = "copied"       // a copy is safe
	Ended  = "ended"        // the backend has ended the context of a message, and its call goes on
)

// Role is what a process does. It goes on until SIGTERM, or until its stdin ends.
type Role struct {
	Backend, URL  string
	Group, Prefix string
	Schedule      backoff.Schedule
	Lease         time.Duration
	Handlers      []Handler
	Fails         int // how often each message fails

	Permanent map[string]int // messages that fail for good, and the failures before
	Outlives  bool           // the first call with each of them waits until the message's context has ended

	Die Death // the process kills itself
	Nth int32 // at which failure, or copy

	Redrive string // the topic of the dead letters that it redrives. Empty: it runs the handlers
}

// Handler is a handler of a Role.
type Handler struct {
	Name, Topic string
	Concurrency int
}

// Death is when a process kills itself.
type Death string

// The deaths.
const (
	Never   Death = ""
	Failed  Death = "failed"  // before the copy is published
	Retried Death = "retried" // after the copy is safe, and before the message is acknowledged
)

var errDown = errors.New("the service is down")

// Name is that of the role, for child.Start.
const Name = "a process of the suite"

// Main plays the role of this process and does not return, where it has one.
func Main() { child.Main(map[string]child.Role{Name: child.Of(play)}) }

func play(ctx context.Context, r Role) error {
	child.EndWithParent()
	logger := Logger()
	backend, err := pubsub.Open(r.Backend, r.URL, logger)
	if err != nil {
		return err
	}
	app := pubsub.App{
		Group: r.Group, Prefix: r.Prefix, Lease: r.Lease, Policy: retry.Policy{Schedule: r.Schedule},
	}
	if r.Redrive != "" {
		return redrive(ctx, backend, app, r.Redrive)
	}
	retries, err := backend.Connect(app)
	if err != nil {
		return err
	}
	retries.Observe(&killer{die: r.Die, nth: r.Nth})
	handler := &handler{role: r}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 20 * time.Second}, logger)
	if err != nil {
		return err
	}
	for _, h := range r.Handlers {
		retries.AddConsumerHandler(router, h.Name, h.Topic, handler.handle, retry.Options{Concurrency: h.Concurrency})
	}
	go func() {
		<-router.Running()
		child.Write(child.Ready)
	}()
	return errors.Join(router.Run(ctx), retries.Close())
}

// handler handles the messages of a role.
type handler struct {
	role     Role
	outlived sync.Map // the IDs of messages whose first call was slow
}

func (h *handler) handle(msg *message.Message) error {
	record, _ := retry.ReadRecord(msg.Metadata)
	child.Write(fmt.Sprintf(Try, record.Failures, time.Now().UnixNano(), msg.UUID))
	before, permanent := h.role.Permanent[msg.UUID]
	switch {
	case permanent && record.Failures >= before:
		if _, again := h.outlived.LoadOrStore(msg.UUID, nil); h.role.Outlives && !again {
			<-msg.Context().Done()
			child.Write(Ended)
		}
		return backoff.Permanent(errDown)
	case permanent, record.Failures < h.role.Fails:
		return errDown
	}
	return nil
}

// Logger is that of all tests: it logs where CONFORMANCE_LOG is set.
func Logger() watermill.LoggerAdapter {
	if os.Getenv("CONFORMANCE_LOG") != "" {
		return watermill.NewStdLogger(false, false)
	}
	return watermill.NopLogger{}
}

// redrive redrives slowly, so that the suite can kill this process meanwhile. The process before may have died with the
// lock.
func redrive(ctx context.Context, backend pubsub.Backend, app pubsub.App, topic string) error {
	store, err := backend.Letters(app)
	if err != nil {
		return err
	}
	child.Write(child.Ready)
	for {
		_, err := store.Redrive(ctx, topic, letters.Redrive{Rate: 50})
		if !errors.Is(err, letters.ErrBusy) {
			return errors.Join(err, store.Close())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// killer is an observer that ends the process.
type killer struct {
	backend.NopObserver
	die Death
	nth int32
	had atomic.Int32
}

// Traceparent is called after a failure, and before its copy is published.
func (k *killer) Traceparent(context.Context) string {
	if k.die == Failed && k.had.Add(1) >= k.nth {
		time.Sleep(300 * time.Millisecond) // an ack that was sent too early reaches the server in this time
		end()
	}
	return ""
}

// Event is called after the copy is safe, and before the message is acknowledged.
func (k *killer) Event(e retry.Event) {
	if e.Outcome != retry.Retried {
		return
	}
	child.Write(Copied)
	if k.die == Retried && k.had.Add(1) >= k.nth {
		end()
	}
}

func end() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// Serve runs a router, and returns when its handlers have subscribed. ended gets the error of Run.
func Serve(ctx context.Context, router *message.Router) (ended <-chan error, err error) {
	run := make(chan error, 1)
	go func() { run <- router.Run(ctx) }()
	select {
	case <-router.Running():
		return run, nil
	case err := <-run:
		return nil, cmp.Or(err, errors.New("the router has ended"))
	}
}
