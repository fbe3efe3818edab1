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
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// measureRedrive measures how many letters a second a redrive sends, and the most memory that wmretry needs.
func measureRedrive(b *bench) error {
	all := b.size(100_000, 4_000)
	sides := []struct {
		name    string
		letters int
		bring   func(uri string) error
	}{{"Store.Redrive", all / 2, redrive}, {"get, publish with a confirm, ack", b.size(3_000, 200), redriveByHand}}
	rates, err := alternate(b.turns(3), len(sides), func(i int) (rate float64, err error) {
		side := sides[i]
		err = b.withLetters(side.letters, func(uri string) error {
			begun := time.Now()
			if err := side.bring(uri); err != nil {
				return err
			}
			rate = float64(side.letters) / time.Since(begun).Seconds()
			return with(uri, func(channel *amqp091.Channel) error {
				state, err := channel.QueueDeclarePassive(work, true, false, false, false, nil)
				if err == nil && state.Messages != side.letters {
					err = fmt.Errorf("%d of %d letters are in the work queue", state.Messages, side.letters)
				}
				return err
			})
		})
		return rate, err
	})
	if err != nil {
		return err
	}
	for i, side := range sides {
		b.row("Redrive of letters of 1 KiB", []string{"way", "letters", "a second"}, side.name, side.letters,
			spread(rates[i], "%.0f"))
	}
	b.claim("redrive_rate", median(rates[0]))
	return b.measureMemory(all)
}

// withLetters fills the dead letters of a work queue.
func (b *bench) withLetters(n int, do func(uri string) error) error {
	return b.in("redrive", func(uri string) error {
		c := perQueue.config(uri, backoff.Constant(time.Minute, 1))
		t, err := topologyOf(c, work)
		if err != nil {
			return err
		}
		body := bytes.Repeat([]byte("x"), 1024)
		err = errors.Join(declare(uri, c, work), publishAll(uri, n, 0,
			func(i int) (string, string, amqp091.Publishing) {
				return t.Exchange(), "dead." + work, letter(i, body)
			}))
		if err != nil {
			return err
		}
		return do(uri)
	})
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

func redrive(uri string) error {
	store, err := deadletter.Open(deadletter.Config{URI: uri}, nil)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	_, err = store.Redrive(context.Background(), deadletter.QueueOf(work), letters.Redrive{})
	return err
}

// redriveByHand is what a user would write by hand.
func redriveByHand(uri string) error {
	return with(uri, func(channel *amqp091.Channel) error {
		for {
			d, found, err := channel.Get(deadletter.QueueOf(work), false)
			if err != nil || !found {
				return err
			}
			confirm, err := channel.PublishWithDeferredConfirm("", work, true, false, amqp091.Publishing{
				DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Headers: d.Headers, Body: d.Body,
			})
			if err != nil {
				return err
			}
			if !confirm.Wait() {
				return errors.New("a letter is not confirmed")
			}
			if err := d.Ack(false); err != nil {
				return err
			}
		}
	})
}

// measureMemory runs wmretry as a process of its own.
func (b *bench) measureMemory(n int) error {
	folder, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/tieredretry/watermill-retry").Output()
	if err != nil {
		return fmt.Errorf("cannot find the module (run bench in the folder integration): %w", err)
	}
	program := filepath.Join(folder, "wmretry")
	build := exec.Command("go", "build", "-C", filepath.Join(strings.TrimSpace(string(root)), "cmd", "wmretry"), "-o",
		program, ".")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build wmretry: %w\n%s", err, output)
	}
	return b.withLetters(n, func(uri string) error {
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
			used := peak(10*time.Millisecond, func() int64 { return residentMemory(command.Process.Pid) })
			if err := command.Wait(); err != nil {
				return fmt.Errorf("wmretry dead %s: %w\n%s", name, err, &problems)
			}
			most := mebibytes(used())
			b.row("wmretry on many letters", []string{"command", "letters", "memory, MiB", "took"},
				"dead "+name, n, digits(most), time.Since(begun).Round(time.Millisecond))
			highest = max(highest, most)
		}
		b.claim("redrive_memory", highest)
		return nil
	})
}
