package main

import (
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const orderKeys = 1_000

func orderKey(msg *message.Message) string { return msg.Metadata.Get("key") }

// measureOrder compares handlers that keep an order through retries with one that keeps that of its process.
func measureOrder(b *bench) error {
	names, partitions := []string{"one process, no partitions", "1 partition", "8 partitions"}, []int{0, 1, 8}
	messages := b.Size(40_000, 500)
	rates, err := b.turns("messages a second, which have succeeded", 3, names, func(i int, uri string) (float64, error) {
		return ordering(partitions[i]).rate(uri, messages)
	})
	if err != nil {
		return err
	}
	b.ratio("order_rate_1", rates[1], rates[0])
	b.ratio("order_rate_8", rates[2], rates[0])
	takeovers, err := b.turns("ms until the next process calls the handler", 5, []string{"a lost connection"},
		func(_ int, uri string) (float64, error) {
			took, err := b.takeover(uri)
			return milliseconds(took), err
		})
	if err == nil {
		b.claim("order_takeover", claims.Median(takeovers[0]))
	}
	return err
}

// ordering is a handler of 16 calls with an order, with so many partitions.
type ordering int

// start starts a handler, which is paused.
func (o ordering) start(uri string, handle func(*message.Message) error) (retry.Connection, func(), error) {
	h := handling{Concurrency: workers, Order: retry.Order{Key: orderKey, Partitions: int(o)}}
	rabbit, stop, err := h.consume(configOf(uri, backoff.Schedule{time.Hour}), handle, work)
	if err == nil {
		err = rabbit.Pause(work)
	}
	return rabbit, stop, err
}

// rate is how many messages a second are handled, of those that wait in the queues.
func (o ordering) rate(uri string, messages int) (float64, error) {
	var handled atomic.Int64
	done := make(chan struct{})
	rabbit, stop, err := o.start(uri, func(*message.Message) error {
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
			msg := message.NewMessage(watermill.NewUUID(), payload)
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
	called := make(chan int, 1_000)
	handler := func(number int) func(*message.Message) error {
		return func(*message.Message) error { called <- number; return nil }
	}
	first, stopFirst, err := ordering(1).start(uri, handler(1))
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
	second, stopSecond, err := ordering(1).start(uri, handler(2))
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
