package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// measureRedrive measures how many letters a second a redrive sends, and the most memory that wmretry needs.
func measureRedrive(b *bench) error {
	all := b.Size(100_000, 4_000)
	rates, err := b.turns(3, 1, func(_ int, uri string) (float64, error) {
		if err := withLetters(uri, all/2); err != nil {
			return 0, err
		}
		begun := time.Now()
		done, err := redrive(uri, deadletter.QueueOf(work))
		if err == nil && done != all/2 {
			err = fmt.Errorf("%d of %d letters were redriven", done, all/2)
		}
		return float64(all/2) / time.Since(begun).Seconds(), err
	})
	if err != nil {
		return err
	}
	b.note("%d letters of 1 KiB, redriven a second: %s", all/2, claims.Spread(rates[0], "%.0f"))
	b.claim("redrive_rate", claims.Median(rates[0]))
	return b.measureMemory(all)
}

// withLetters fills the dead letters of a work queue.
func withLetters(uri string, n int) error {
	c := perQueue.config(uri, backoff.Constant(time.Minute, 1))
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
	headers := amqp091.Table{publisher.UUIDHeader: idOf(i), "customer": strconv.Itoa(i % 1000)}
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

// measureMemory runs wmretry as a process of its own.
func (b *bench) measureMemory(n int) error {
	folder, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	program := filepath.Join(folder, "wmretry")
	build := exec.Command("go", "build", "-C", "../cmd/wmretry", "-o", program, ".")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build wmretry: %w\n%s", err, output)
	}
	return b.in("redrive", func(uri string) error {
		if err := withLetters(uri, n); err != nil {
			return err
		}
		highest := 0.0
		for _, name := range []string{"list", "redrive"} {
			command := exec.Command(program, "dead", name, work)
			command.Env = append(os.Environ(), "AMQP_URL="+uri)
			var problems bytes.Buffer
			command.Stderr = &problems
			begun := time.Now()
			if err := command.Start(); err != nil {
				return err
			}
			resident := peak(10*time.Millisecond, func() int64 {
				_, memory := used(command.Process.Pid)
				return memory
			})
			if err := command.Wait(); err != nil {
				return fmt.Errorf("wmretry dead %s: %w\n%s", name, err, &problems)
			}
			most := mebibytes(resident())
			b.note("wmretry dead %s of %d letters: %s MiB, took %v", name, n, claims.Digits(most),
				time.Since(begun).Round(time.Millisecond))
			highest = max(highest, most)
		}
		b.claim("redrive_memory", highest)
		return nil
	})
}
