package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	queue = "orders"

	// Every tenth order has no amount: no retry can bill it.
	faulty = 10
)

var schedule = backoff.Schedule{500 * time.Millisecond, time.Second, 2 * time.Second}

type order struct {
	Number int `json:"number"`
	Cents  int `json:"cents"`
}

// bill returns a handler that bills an order at the payment provider, which has this address. The demo's provider
// accepts every connection, and that is all.
func bill(provider string) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		var o order
		if err := json.Unmarshal(msg.Payload, &o); err != nil {
			return backoff.Permanent(fmt.Errorf("not an order: %w", err))
		}
		if o.Cents <= 0 {
			return backoff.Permanent(fmt.Errorf("order %d has no amount", o.Number))
		}
		connection, err := net.DialTimeout("tcp", provider, 10*time.Second)
		if err != nil {
			return fmt.Errorf("charge order %d: %w", o.Number, err)
		}
		return connection.Close()
	}
}

// counter is an observer that sends each outcome.
type counter struct {
	outcomes chan<- retry.Outcome
	end      <-chan struct{}
}

func (c counter) Event(e retry.Event) {
	select {
	case c.outcomes <- e.Outcome:
	case <-c.end:
	}
}

// runApp runs the app. With opts.orders it ends when these are billed or dead.
func runApp(ctx context.Context, opts options, out io.Writer) (err error) {
	logger := watermill.NopLogger{}
	rabbit, err := config.Connect(config.Config{
		AMQP: amqp.NewDurableQueueConfig(opts.uri), Policy: retry.Policy{Schedule: schedule},
	}, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rabbit.Close()) }()

	outcomes := make(chan retry.Outcome)
	counting, end := context.WithCancel(ctx)
	defer end()
	router := message.NewDefaultRouter(logger)
	if opts.orders > 0 {
		rabbit.Observe(counter{outcomes: outcomes, end: counting.Done()})
	}
	rabbit.AddConsumerHandler(router, "billing", queue, bill(opts.address))
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(ctx) }() // it closes the router when ctx ends
	select {
	case <-router.Running():
	case err := <-stopped:
		return err
	}
	if opts.orders == 0 {
		_, _ = fmt.Fprintln(out, "the app bills", queue)
		return <-stopped
	}
	published := make(chan error, 1)
	go func() { published <- publish(rabbit.Publisher(), opts.orders) }()
	for billed, dead := 0, 0; billed+dead < opts.orders; {
		select {
		case err := <-published:
			if err != nil {
				end()
				return errors.Join(err, router.Close(), <-stopped)
			}
			published = nil
		case outcome := <-outcomes:
			switch outcome {
			case retry.Processed, retry.Recovered:
				billed++
			case retry.DeadLettered:
				dead++
			}
			if billed+dead == opts.orders {
				_, _ = fmt.Fprintf(out, "published=%d billed=%d dead=%d\n", opts.orders, billed, dead)
			}
		case err := <-stopped:
			return err
		}
	}
	end()
	return errors.Join(router.Close(), <-stopped)
}

func publish(publisher message.Publisher, orders int) error {
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
