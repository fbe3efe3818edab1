package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	margin         = 20 * time.Second
	marginPerOrder = 50 * time.Millisecond
	cleanupTimeout = 30 * time.Second
)

// demo runs the app on queues that no other run has, and tells what became of every order.
func demo(ctx context.Context, opts options, out io.Writer, logger watermill.LoggerAdapter) (err error) {
	run := "demo-" + randomName()
	queue, prefix := "orders."+run, "retry."+run

	orders, err := newOrders(opts.messages)
	if err != nil {
		return err
	}
	provider := newProvider(opts.messages, opts.schedule)
	timeline := newTimeline(out, opts.verbose)
	journal := newJournal(orders, timeline)

	version, err := checkBroker(ctx, opts.uri)
	if err != nil {
		return err
	}
	app, err := newApp(opts, queue, prefix, provider.bill, journal, logger)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "%s at %s\n%d orders go to the queue %s, where %d handlers bill them.\n"+
		"One that fails waits on the broker: %s, then it is dead-lettered. A row appears when it is back.\n\n",
		version, place(opts.uri), opts.messages, queue, handlers, opts.schedule)
	timeline.header()

	published, runErr := app.bill(ctx, opts, queue, orders, journal)
	timeline.clear()
	closeErr := app.close()
	timeline.clear()

	// From here on nothing may be cut short by an interrupt: the queues have to go.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	defer func() { err = errors.Join(err, remove(cleanup, opts.uri, app.topology)) }()
	if ctx.Err() != nil || len(published) == 0 {
		return errors.Join(runErr, closeErr)
	}
	return errors.Join(runErr, closeErr, report(cleanup, opts, out, queue+".dead", published, journal))
}

// bill publishes the orders and waits until each is settled; it returns the identities of those published.
func (a *app) bill(ctx context.Context, opts options, queue string, orders []*message.Message, j *journal) ([]string, error) {
	if err := a.start(); err != nil {
		return nil, err
	}
	patient, cancel := context.WithTimeout(ctx, patience(opts.schedule, len(orders)))
	defer cancel()
	published, err := publish(patient, opts.uri, queue, orders)
	if err != nil {
		return published, err
	}

	ticker := time.NewTicker(j.timeline.every())
	defer ticker.Stop()
	for {
		select {
		case <-j.settled:
			return published, nil
		case <-ticker.C:
			j.tick()
		case err := <-a.stopped:
			a.stopped <- err
			return published, errors.Join(errors.New("the router has stopped"), err)
		case <-patient.Done():
			return published, j.unsettled()
		}
	}
}

// publish is what any service does that takes orders; it is no part of the retries. It gives up waiting when the context
// ends: a broker in an alarm confirms nothing.
func publish(ctx context.Context, uri, queue string, orders []*message.Message) ([]string, error) {
	var published []string
	done := make(chan error, 1)
	go func() {
		config := amqp.NewDurableQueueConfig(uri)
		config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize = true, 1
		orderPublisher, err := amqp.NewPublisher(config, watermill.NopLogger{})
		if err != nil {
			done <- err
			return
		}
		for _, msg := range orders {
			if err = orderPublisher.Publish(queue, msg); err != nil || ctx.Err() != nil {
				break
			}
			published = append(published, msg.UUID)
		}
		done <- errors.Join(err, orderPublisher.Close())
	}()
	select {
	case err := <-done:
		if err != nil {
			return published, fmt.Errorf("%d of %d orders were published: %w", len(published), len(orders), err)
		}
		return published, nil
	case <-ctx.Done():
		return nil, errors.New("not all orders were published and confirmed")
	}
}

// report prints the dead letters and, as the last line, the summary.
func report(ctx context.Context, opts options, out io.Writer, deadQueue string, published []string, j *journal) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	letters, err := readLetters(ctx, opts.uri, deadQueue, len(j.dead))
	if err != nil {
		return err
	}
	printLetters(out, deadQueue, letters, j.numbers)
	dead := map[string]int{}
	for _, l := range letters {
		dead[l.uuid]++
	}
	s := summarize(published, j.billed, dead, j.late)
	_, _ = fmt.Fprintln(out, s)
	if !s.complete() {
		return errors.New("the orders do not add up")
	}
	return nil
}

// patience is how long the slowest order may take: the one that waits out the whole schedule, or the one with a wish.
func patience(schedule backoff.Schedule, orders int) time.Duration {
	longest := margin + time.Duration(orders)*marginPerOrder
	for _, delay := range append(slices.Clone(schedule), 2*slices.Max(schedule)) {
		if longest > math.MaxInt64-delay {
			return math.MaxInt64
		}
		longest += delay
	}
	return longest
}

func randomName() string {
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	return hex.EncodeToString(random)
}
