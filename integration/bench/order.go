package main

import (
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const orderKeys = 1_000

func orderKey(msg *message.Message) string { return msg.Metadata.Get("key") }

// An orderingSide is a handler of 16 calls with an order.
type orderingSide struct {
	name       string
	claim      string // its rate, to that of the first side; empty: none
	partitions int
}

// measureOrder compares handlers that keep an order through retries with one that keeps that of its process.
func measureOrder(b *bench) error {
	sides := []orderingSide{
		{name: "one process, no partitions"}, {"1 partition", "order_rate_1", 1}, {"8 partitions", "order_rate_8", 8},
	}
	messages := b.Size(40_000, 500)
	rates, err := b.turns(3, len(sides), func(i int, uri string) (float64, error) { return sides[i].rate(uri, messages) })
	if err != nil {
		return err
	}
	for i, s := range sides {
		b.note("%s: %s messages a second, which have succeeded", s.name, claims.Spread(rates[i], "%.0f"))
		if s.claim != "" {
			b.ratio(s.claim, rates[i], rates[0])
		}
	}
	takeovers, err := b.turns(5, 1, func(_ int, uri string) (float64, error) {
		took, err := b.takeover(uri)
		return milliseconds(took), err
	})
	if err != nil {
		return err
	}
	b.note("a partition whose process has lost its connection: %s ms until the next one calls the handler",
		claims.Spread(takeovers[0], "%.0f"))
	b.claim("order_takeover", claims.Median(takeovers[0]))
	return nil
}

func (s orderingSide) config(uri string) (config.Config, retry.Options) {
	c := configOf(uri, backoff.Schedule{time.Hour})
	return c, retry.Options{Concurrency: workers, Order: retry.Order{Key: orderKey, Partitions: s.partitions}}
}

// start starts a handler, which is paused.
func (s orderingSide) start(uri string, handle func(*message.Message) error) (retry.Connection, func(), error) {
	c, options := s.config(uri)
	rabbit, stop, err := handling(options).consume(c, handle, work)
	if err == nil {
		err = rabbit.Pause(work)
	}
	return rabbit, stop, err
}

// rate is how many messages a second are handled, of those that wait in the queues.
func (s orderingSide) rate(uri string, messages int) (float64, error) {
	var handled atomic.Int64
	done := make(chan struct{})
	rabbit, stop, err := s.start(uri, func(*message.Message) error {
		if handled.Add(1) == int64(messages) {
			close(done)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer stop()
	if err := publishKeyed(rabbit, messages); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := rabbit.Resume(work); err != nil {
		return 0, err
	}
	<-done
	return float64(messages) / time.Since(began).Seconds(), nil
}

// publishKeyed publishes messages of all keys in turn.
func publishKeyed(rabbit retry.Connection, messages int) error {
	return claims.Together(workers, func(worker int) error {
		for n := worker; n < messages; n += workers {
			msg := message.NewMessage(watermill.NewUUID(), make([]byte, 512))
			msg.Metadata.Set("key", strconv.Itoa(n%orderKeys))
			if err := rabbit.Publisher().Publish(work, msg); err != nil {
				return err
			}
		}
		return nil
	})
}

// takeover is the time from the loss of a process's connection until another process is called.
func (b *bench) takeover(uri string) (time.Duration, error) {
	side := orderingSide{partitions: 1}
	called := make(chan int, 1_000)
	handler := func(number int) func(*message.Message) error {
		return func(*message.Message) error { called <- number; return nil }
	}
	first, stopFirst, err := side.start(uri, handler(1))
	if err != nil {
		return 0, err
	}
	defer stopFirst()
	if err := errors.Join(first.Resume(work), publishKeyed(first, 1)); err != nil {
		return 0, err
	}
	<-called
	before, err := b.connected(uri, 3)
	if err != nil {
		return 0, err
	}
	second, stopSecond, err := side.start(uri, handler(2))
	if err != nil {
		return 0, err
	}
	defer stopSecond()
	if err := second.Resume(work); err != nil {
		return 0, err
	}
	for !second.Health().Subscriptions[0].Consuming {
		time.Sleep(10 * time.Millisecond)
	}
	began := time.Now()
	for _, name := range before {
		answer, err := b.management.CloseConnection(name)
		if err == nil {
			err = answer.Body.Close()
		}
		if err != nil {
			return 0, err
		}
	}
	for {
		if err := publishKeyed(second, 1); err != nil {
			return 0, err
		}
		if <-called == 2 {
			return time.Since(began), nil
		}
	}
}
