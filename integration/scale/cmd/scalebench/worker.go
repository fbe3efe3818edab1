package main

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/middleware"
)

const (
	workerQueue = "orders"
	workerDelay = time.Second
	failEvery   = 20 // 5% of the messages fail, once
)

type workerResult struct {
	broker, side string
	done         []time.Duration // when each message was done, since the first call, ascending
}

// A workerApp fails for one of failEvery messages, once.
type workerApp struct {
	gate   chan struct{}
	mu     sync.Mutex
	begin  time.Time
	failed map[int]time.Time
	left   map[int]bool
	done   []time.Duration
	early  int
	ready  chan struct{}
}

func newWorkerApp(messages int) *workerApp {
	a := &workerApp{gate: make(chan struct{}), failed: map[int]time.Time{}, left: map[int]bool{}, ready: make(chan struct{})}
	for i := range messages {
		a.left[i] = true
	}
	return a
}

func (a *workerApp) handle(msg *message.Message) error {
	<-a.gate
	a.mu.Lock()
	defer a.mu.Unlock()
	i, err := messageOf(msg.UUID)
	if err != nil || !a.left[i] {
		return nil
	}
	failed, again := a.failed[i]
	switch {
	case i%failEvery == 0 && !again:
		a.failed[i] = time.Now()
		return errMeasured
	case again && time.Since(failed) < broker.Least(workerDelay):
		a.early++
	}
	delete(a.left, i)
	if a.done = append(a.done, time.Since(a.begin)); len(a.left) == 0 {
		close(a.ready)
	}
	return nil
}

// A workerSide is one way to retry with one handler.
type workerSide struct {
	name    string
	claim   string
	consume func(uri string, handler message.NoPublishHandlerFunc) (stop func(), err error)
}

var workerSides = []workerSide{
	{name: "Watermill's Retry, watermill-amqp's subscriber", consume: consumeWatermill},
	{name: "library, watermill-amqp's subscriber", claim: "worker_watermill_amqp", consume: consumeParts},
	{name: "library, its own subscriber", claim: "worker_own_subscriber", consume: func(uri string, handler message.NoPublishHandlerFunc) (func(), error) {
		return consume(perQueue.config(uri, backoff.Constant(workerDelay, 3)), workerQueue, handler, middleware.HandlerOptions{})
	}},
}

func measureWorker(s *server, o settings, r *report) error {
	messages := 2_000
	if o.short {
		messages = 3 * failEvery
	}
	var first time.Duration
	for _, side := range workerSides {
		done, err := side.measure(s, messages)
		if err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		took := done[len(done)-1]
		if first == 0 {
			first = took
		}
		r.worker = append(r.worker, workerResult{s.version, side.name, done})
		r.row("worker", "One handler, 5% of the messages fail once",
			[]string{"RabbitMQ", "way", "messages", "half of them done", "all done", "sooner"},
			s.version, side.name, strconv.Itoa(messages), seconds(done[len(done)/2]), seconds(took), fmt.Sprintf("%.1f times", first.Seconds()/took.Seconds()))
		if side.claim != "" {
			r.claimAtLeast(s, side.claim, "", first.Seconds()/took.Seconds(), 20)
		}
	}
	return nil
}

// measure fills the queue first, and begins when the handler consumes.
func (side workerSide) measure(s *server, messages int) ([]time.Duration, error) {
	uri, remove, err := s.vhost("worker")
	if err != nil {
		return nil, err
	}
	defer remove()
	a := newWorkerApp(messages)
	stop, err := side.consume(uri, a.handle)
	if err != nil {
		return nil, err
	}
	defer stop()
	p, err := newPipeline(uri)
	if err != nil {
		return nil, err
	}
	defer p.close()
	for i := range messages {
		if err := p.publish("", workerQueue, byHand(idOf(i), 0)); err != nil {
			return nil, err
		}
	}
	if err := p.flush(); err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.begin = time.Now()
	a.mu.Unlock()
	close(a.gate)
	select {
	case <-a.ready:
	case <-time.After(time.Duration(messages/failEvery)*workerDelay + patience):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.left) > 0 || a.early > 0 {
		return nil, fmt.Errorf("lost=%d early=%d of %d messages", len(a.left), a.early, messages)
	}
	return a.done, nil
}

// consumeWatermill waits in the handler, as Watermill's Retry does.
func consumeWatermill(uri string, handler message.NoPublishHandlerFunc) (func(), error) {
	app := amqp.NewDurableQueueConfig(uri)
	app.Queue.Arguments = amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	retry := watermillmiddleware.Retry{MaxRetries: 3, InitialInterval: workerDelay, Multiplier: 1}
	return consumeStock(app, handler, retry.Middleware)
}

// consumeParts is the library around watermill-amqp's own subscriber, which has one message in flight.
func consumeParts(uri string, handler message.NoPublishHandlerFunc) (func(), error) {
	builder, err := config.NewBuilder(perQueue.config(uri, backoff.Constant(workerDelay, 3)))
	if err != nil {
		return nil, err
	}
	failures, err := builder.NewPublisher(nil)
	if err != nil {
		return nil, err
	}
	retry, err := middleware.NewTieredRetry(builder.TieredRetryConfig(failures), nil)
	if err != nil {
		return nil, err
	}
	stop, err := consumeStock(builder.SubscriberConfig(), handler, retry.Middleware)
	return func() {
		if stop != nil {
			stop()
		}
		_ = failures.Close()
	}, err
}

func consumeStock(app amqp.Config, handler message.NoPublishHandlerFunc, retry message.HandlerMiddleware) (func(), error) {
	stock, err := amqp.NewSubscriber(app, watermill.NopLogger{}) // the router closes it
	if err != nil {
		return nil, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	router.AddConsumerHandler("billing", workerQueue, stock, handler).AddMiddleware(retry)
	return runRouter(router)
}
