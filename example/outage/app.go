package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/retry"
)

// Every tenth order has no amount: no retry can bill it.
const faulty = 10

type order struct {
	Number int `json:"number"`
	Cents  int `json:"cents"`
}

// biller bills orders at the payment provider.
type biller struct {
	provider string // its address
	client   http.Client
}

func (b *biller) bill(msg *message.Message) error {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return backoff.Permanent(fmt.Errorf("not an order: %w", err))
	}
	if o.Cents <= 0 {
		return backoff.Permanent(fmt.Errorf("order %d has no amount", o.Number))
	}
	request, err := http.NewRequestWithContext(msg.Context(), http.MethodPost, "http://"+b.provider+"/charges", bytes.NewReader(msg.Payload))
	if err != nil {
		return err
	}
	response, err := b.client.Do(request)
	if err != nil {
		var fault *url.Error // its text has the address a second time
		if errors.As(err, &fault) {
			err = fault.Err
		}
		return fmt.Errorf("charge order %d: %w", o.Number, err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("charge order %d: the provider answers %s", o.Number, response.Status)
	}
	return nil
}

// tally counts orders that are settled.
type tally struct {
	mu           sync.Mutex
	billed, dead int
	all          int           // how many to wait for
	settled      chan struct{} // closed when all are settled
}

func (t *tally) count(e retry.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Outcome {
	case retry.Processed, retry.Recovered:
		t.billed++
	case retry.DeadLettered:
		t.dead++
	default:
		return
	}
	if t.billed+t.dead == t.all {
		close(t.settled)
	}
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("published=%d billed=%d dead=%d", t.all, t.billed, t.dead)
}

// bill runs the app. With opts.orders it ends when these are billed or dead.
func bill(ctx context.Context, opts options, out io.Writer) (err error) {
	logger := watermill.NopLogger{}
	rabbit, err := config.Connect(config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(opts.uri), Schedule: opts.schedule}, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rabbit.Close()) }()

	router := message.NewDefaultRouter(logger)
	counts := &tally{all: opts.orders, settled: make(chan struct{})}
	biller := &biller{provider: opts.address, client: http.Client{Timeout: 10 * time.Second}}
	rabbit.AddConsumerHandler(router, "billing", opts.queue, biller.bill, middleware.HandlerOptions{
		Middleware: func(c *middleware.TieredRetryConfig) { c.Observe = counts.count },
	})

	running, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 1)
	go func() {
		select {
		case <-router.Running():
		case <-running.Done():
			return
		}
		if opts.orders == 0 {
			_, _ = fmt.Fprintln(out, "the app bills", opts.queue)
			return
		}
		if err := publish(rabbit.Publisher(), opts.queue, opts.orders); err != nil {
			failed <- err
			stop()
			return
		}
		select {
		case <-counts.settled:
			_, _ = fmt.Fprintln(out, counts)
		case <-running.Done():
		}
		stop()
	}()
	err = router.Run(running) // it closes the router when running ends
	select {
	case fault := <-failed:
		return errors.Join(err, fault)
	default:
		return err
	}
}

func publish(publisher message.Publisher, queue string, orders int) error {
	for i := range orders {
		o := order{Number: i + 1, Cents: 1999 + 100*i}
		if o.Number%faulty == 0 {
			o.Cents = 0
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if err := publisher.Publish(queue, message.NewMessage(fmt.Sprintf("order-%d", o.Number), payload)); err != nil {
			return fmt.Errorf("only %d of %d orders were published: %w", i, orders, err)
		}
	}
	return nil
}
