package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// measureRate compares the rounds of both ways, one after the other: the machine may have other work.
func (b bench) measureRate(ctx context.Context) ([]string, error) {
	n := b.letters / 2
	fmt.Printf("redrive of %d letters with a body of %d bytes, and of %d by a loop that gets, publishes with a confirm, and acknowledges:\n", n, b.size, b.byHand)
	var ours, byHand []float64
	for round := range b.rounds {
		rate, err := b.round(ctx, n, redrive)
		if err != nil {
			return nil, err
		}
		hand, err := b.round(ctx, b.byHand, loop)
		if err != nil {
			return nil, err
		}
		fmt.Printf("  round %d: %.0f/s, by hand %.0f/s\n", round+1, rate, hand)
		ours, byHand = append(ours, rate), append(byHand, hand)
	}
	rate, hand := median(ours), median(byHand)
	fmt.Printf("  median: %.0f/s, by hand %.0f/s, %.1f times as many\n", rate, hand, rate/hand)
	return []string{claim("redrive_rate", "/s", rate, targetRate, rate >= targetRate)}, nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// round fills a queue, and returns how many letters a second come back.
func (b bench) round(ctx context.Context, n int, bring func(context.Context, bench, *queues, int) error) (rate float64, err error) {
	q, err := b.declare()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, q.remove()) }()
	if err := q.fill(ctx, n, b.size); err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := bring(ctx, b, q, n); err != nil {
		return 0, err
	}
	rate = float64(n) / time.Since(begun).Seconds()
	state, err := q.channel.QueueDeclarePassive(q.work, true, false, false, false, nil)
	if err == nil && state.Messages != n {
		err = fmt.Errorf("%d of %d letters are in the work queue", state.Messages, n)
	}
	return rate, err
}

func redrive(ctx context.Context, b bench, q *queues, n int) error {
	store, err := deadletter.Open(deadletter.Config{URI: b.uri}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	summary, err := store.Redrive(ctx, q.dead, letters.Redrive{})
	if err == nil && summary.Done != n {
		err = fmt.Errorf("%d letters: %v", n, summary)
	}
	return err
}

// loop is what a user would write by hand.
func loop(ctx context.Context, _ bench, q *queues, _ int) error {
	for {
		d, found, err := q.channel.Get(q.dead, false)
		if err != nil || !found {
			return err
		}
		confirm, err := q.channel.PublishWithDeferredConfirmWithContext(ctx, "", q.work, true, false, amqp091.Publishing{
			DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Headers: d.Headers, Body: d.Body,
		})
		if err != nil {
			return err
		}
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			return fmt.Errorf("a letter is not confirmed: %w", err)
		}
		if err := d.Ack(false); err != nil {
			return err
		}
	}
}
