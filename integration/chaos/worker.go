package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
)

// roles are those of the processes of this program.
var roles = map[string]child.Role{"worker": child.Of(runWorker)}

// workerTask is the task of a process of the app.
type workerTask struct {
	App             appConfig
	Ledger          string // its address
	Number          int
	ConsumerTimeout time.Duration
}

// worker is a process of the app. Its handler does what the ledger tells it, which it also tells what happens.
type worker struct {
	workerTask
	ledger   *rpc.Client
	router   *message.Router
	closers  []func() error // what closes the parts that are used until the router is closed
	mu       sync.Mutex
	sessions map[context.Context]int // the number of sessions of the partitions
}

// runWorker runs until this process is told to end, or its parent ends.
func runWorker(ctx context.Context, task workerTask) error {
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	w := &worker{workerTask: task, router: message.NewDefaultRouter(quiet), sessions: map[context.Context]int{}}
	var err error
	if w.ledger, err = rpc.Dial("tcp", task.Ledger); err != nil {
		return err
	}
	before := goleak.IgnoreCurrent()
	if task.App.Ordered {
		err = w.order()
	} else if err = w.connect(); err == nil {
		err = w.connectStock()
	}
	if err != nil {
		return err
	}
	stop, err := broker.Run(w.router)
	if err != nil {
		return err
	}
	child.Write(child.Ready)
	select {
	case <-ended:
	case <-ctx.Done():
	}
	err = stop()
	for _, end := range w.closers {
		err = errors.Join(err, end())
	}
	if err == nil && leaked(before) {
		err = w.tell("Leaks", w.Number)
	}
	return err
}

// leaked reports, after some time, whether there are goroutines besides those before.
func leaked(before goleak.Option) bool {
	var err error
	for range 20 { // each look takes up to half a second
		if err = goleak.Find(before); err == nil {
			return false
		}
	}
	fmt.Fprintln(os.Stderr, "goroutines left:", err)
	return true
}

// tell returns when the ledger has counted what has happened.
func (w *worker) tell(what string, about any) error {
	return w.ledger.Call("ledger."+what, about, new(bool))
}

// moves tells the ledger the copies that the broker has confirmed, and those that it has not.
type moves struct {
	backend.NopObserver
	*worker
	which int // the number of the work queue
}

func (m moves) Published(p backend.Published) {
	if p.Copy && p.Result != backend.PublishConfirmed {
		_ = m.tell("Refused", m.which)
	}
}

func (m moves) Event(e retry.Event) {
	which := queueOf(e.MessageUUID)
	switch e.Outcome {
	case retry.Retried, retry.Snoozed:
		_ = m.tell("Moved", Move{e.MessageUUID, m.App.tier(which, e.Tier), time.Duration(e.Tier), false})
	case retry.DeadLettered:
		_ = m.tell("Moved", Move{e.MessageUUID, m.App.dead(which), 0, true})
	}
}

// connect consumes the first work queue with Connect.
func (w *worker) connect() error {
	rabbit, err := config.Connect(w.App.rabbit(), quiet)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, rabbit.Close)
	rabbit.Observe(moves{worker: w, which: connected})
	options := retry.Options{Concurrency: concurrency}
	rabbit.AddConsumerHandler(w.router, "bill", w.App.queue(connected), w.bill, options)
	return nil
}

// connectStock consumes the second work queue with watermill-amqp's subscriber.
func (w *worker) connectStock() error {
	rabbit, err := config.NewBuilder(w.App.rabbit())
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), quiet)
	if err != nil {
		return err
	}
	rabbit.Observe(moves{worker: w, which: stock})
	w.closers = append(w.closers, subscriber.Close, rabbit.Close)
	tiered, err := rabbit.NewTieredRetry(quiet)
	if err != nil {
		return err
	}
	for i := range concurrency {
		name := fmt.Sprintf("bill/%d", i)
		w.router.AddConsumerHandler(name, w.App.queue(stock), subscriber, w.bill).AddMiddleware(tiered)
	}
	return nil
}

// order consumes a work queue in the order of its keys.
func (w *worker) order() error {
	rabbit, err := config.Connect(w.App.rabbit(), quiet)
	if err != nil {
		return err
	}
	w.closers = append(w.closers, rabbit.Close)
	rabbit.AddConsumerHandler(w.router, "bill", w.App.queue(ordered), w.bill, retry.Options{
		Concurrency: orderConcurrency,
		Order: retry.Order{
			Key:        func(msg *message.Message) string { return keyOf(msg.UUID) },
			Partitions: partitions, ConsumerTimeout: w.ConsumerTimeout,
		},
	})
	return nil
}

func (w *worker) bill(msg *message.Message) error {
	record, _ := retry.ReadRecord(msg.Metadata)
	c := Call{Identity: msg.UUID, Failures: record.Failures, Process: w.Number}
	if w.App.Ordered {
		c.Session = w.session(msg)
	}
	var told Answer
	if err := w.ledger.Call("ledger.Called", c, &told); err != nil {
		return err
	}
	if told.Nack {
		msg.Nack()
		return nil
	}
	if !sleep(msg.Context(), told.Work) {
		return context.Cause(msg.Context())
	}
	switch {
	case told.Outage:
		return errOutage
	case told.Wait > 0:
		return backoff.RetryAfter(errBank, told.Wait)
	case told.Fails:
		return errBank
	}
	if err := w.tell("Handled", c); err != nil {
		return err
	}
	if told.Dead {
		return backoff.Permanent(errBank)
	}
	return nil
}

// session returns the number of the partition's session from which a message is. Its context has the values of the
// session's context.
func (w *worker) session(msg *message.Message) int {
	of := msgctx.Lookup(msg).Context
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sessions[of] == 0 {
		w.sessions[of] = len(w.sessions) + 1
	}
	return w.sessions[of]
}
