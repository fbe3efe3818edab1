package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// measureRedrive measures how many letters a second a redrive sends.
func measureRedrive(b *bench) error {
	all := b.Size(50_000, 2_000)
	title := fmt.Sprintf("%d letters of 1 KiB, redriven a second", all)
	rates, err := b.turns(title, 3, []string{"redrive"}, func(_ int, uri string) (float64, error) {
		if err := withLetters(uri, all); err != nil {
			return 0, err
		}
		begun := time.Now()
		done, err := redrive(uri, deadletter.QueueOf(work))
		if err == nil && done != all {
			err = fmt.Errorf("%d of %d letters were redriven", done, all)
		}
		return float64(all) / time.Since(begun).Seconds(), err
	})
	if err == nil {
		b.claim("redrive_rate", claims.Median(rates[0]))
	}
	return err
}

// withLetters fills the dead letters of a work queue.
func withLetters(uri string, n int) error {
	c := configOf(uri, backoff.Constant(time.Minute, 1))
	t, err := topologyOf(c, work)
	if err != nil {
		return err
	}
	body := bytes.Repeat([]byte("x"), 1024)
	return errors.Join(declare(uri, c, work), publishAll(uri, n, 0, func(i int) (string, string, amqp091.Publishing) {
		return t.Exchanges[0].Name, "dead." + work, letter(i, body)
	}))
}

// letter is a dead letter, with a record as the middleware writes it.
func letter(i int, body []byte) amqp091.Publishing {
	at := time.Now().Add(-time.Hour)
	metadata := message.Metadata{}
	retry.Record{
		Failures: 5, FirstFailedAt: at, LastFailedAt: at.Add(time.Minute), Topic: work, Handler: "ship",
		Subscriber: "rabbitmq.Subscriber", Reason: "dial 10.0.0." + strconv.Itoa(i%250) + ":5432: connection refused",
		ErrorType: "*net.OpError", DeadReason: retry.DeadReasonExhausted,
	}.Write(metadata)
	headers := amqp091.Table{publisher.UUIDHeader: claims.ID(i), "customer": strconv.Itoa(i % 1000)}
	for key, value := range metadata {
		headers[key] = value
	}
	return amqp091.Publishing{DeliveryMode: amqp091.Persistent, ContentType: "application/json", Headers: headers,
		Body: body}
}

func redrive(uri, queue string) (done int, err error) {
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = store.Close() }()
	summary, err := store.Redrive(context.Background(), queue, letters.Redrive{})
	return summary.Done, err
}
