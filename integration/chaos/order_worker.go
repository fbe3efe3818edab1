package main

import (
	"context"
	"errors"
	"net/rpc"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/retry"
)

// orderTask is the task of a process that keeps the order of keys.
type orderTask struct {
	App             appConfig
	Queue, Sink     string
	Number          int
	ConsumerTimeout time.Duration
}

// The metadata of its messages.
const (
	keyField    = "key"
	numberField = "number"
)

func orderIdentity(key string, n int) string { return key + "/" + strconv.Itoa(n) }

// orderConcurrency is how many handlers of a process run at the same time.
const orderConcurrency = 32

// worker is a process that keeps the order of keys. Its handler does what the sink tells it.
type worker struct {
	task     orderTask
	sink     *rpc.Client
	mu       sync.Mutex
	sessions map[context.Context]int // the number of sessions of the partitions
}

func orderConsumer(ctx context.Context, task orderTask) error {
	w := &worker{task: task, sessions: map[context.Context]int{}}
	return untilTheEnd(ctx, w.start)
}

func (w *worker) start() (end func() error, err error) {
	if w.sink, err = rpc.Dial("tcp", w.task.Sink); err != nil {
		return nil, err
	}
	rabbit, err := config.Connect(w.task.App.rabbit(), quiet)
	if err != nil {
		return nil, err
	}
	router := message.NewDefaultRouter(quiet)
	rabbit.AddConsumerHandler(router, "bill", w.task.Queue, w.bill, retry.Options{
		Concurrency: orderConcurrency,
		Order: retry.Order{
			Key:        func(msg *message.Message) string { return msg.Metadata.Get(keyField) },
			Partitions: partitions, ConsumerTimeout: w.task.ConsumerTimeout,
		},
	})
	stop, err := broker.Run(router)
	if err != nil {
		return nil, errors.Join(err, rabbit.Close())
	}
	return func() error { return errors.Join(stop(), rabbit.Close(), w.sink.Close()) }, nil
}

func (w *worker) bill(msg *message.Message) error {
	n, err := strconv.Atoi(msg.Metadata.Get(numberField))
	if err != nil {
		return backoff.Permanent(err)
	}
	c := Call{Key: msg.Metadata.Get(keyField), N: n, Process: w.task.Number, Session: w.session(msg)}
	told, err := w.ask(c)
	switch {
	case err != nil:
		return err
	case told.Nack:
		msg.Nack()
		return nil
	case told.Wait > 0:
		return backoff.RetryAfter(errBank, told.Wait)
	}
	if !sleep(msg.Context(), told.Work) {
		return context.Cause(msg.Context())
	}
	c.Effect = true
	if _, err := w.ask(c); err != nil {
		return err
	}
	if told.Dead {
		return backoff.Permanent(errBank)
	}
	return nil
}

// ask returns when the sink has counted the call.
func (w *worker) ask(c Call) (told Answer, err error) {
	err = w.sink.Call("sink.Called", c, &told)
	return told, err
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
