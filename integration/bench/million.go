package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/procfs"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// measureMillion measures the memory of an app to whose queue a million messages come back from a tier, which is longer
// than their publishing takes.
func measureMillion(b *bench) error {
	messages, wait := b.Size(1_000_000, 5_000), time.Duration(b.Size(300, 5))*time.Second
	return b.in("million", func(uri string) error {
		copies, err := b.copies(uri, wait)
		if err != nil {
			return err
		}
		l := newLedger(messages, claims.Always(wait))
		l.Late = make([]time.Duration, 0, messages)
		began := time.Now()
		err = publishAll(uri, messages, 0, func(i int) (exchange, key string, _ amqp091.Publishing) {
			l.Fail(claims.ID(i))
			return copies(i)
		})
		if err != nil {
			return err
		}
		if took := time.Since(began); took > wait {
			return fmt.Errorf("%d messages were published in %v: they have not waited together", messages, took)
		}
		debug.FreeOSMemory()
		idle, largest := resident(), make(chan int)
		ended := make(chan struct{})
		go func() {
			most := idle
			for {
				select {
				case <-time.After(50 * time.Millisecond):
					most = max(most, resident())
				case <-ended:
					largest <- most
					return
				}
			}
		}()
		_, stop, err := handling{Concurrency: inFlight, Prefetch: inFlight}.consume(
			configOf(uri, backoff.Schedule{wait}),
			func(msg *message.Message) error { l.Call(msg.UUID, 1); return nil }, work)
		if err != nil {
			return err
		}
		defer stop()
		time.Sleep(time.Until(began.Add(wait))) // longer than the ledger waits for a call
		err = l.Wait()
		close(ended)
		b.claim("million_app_memory", float64(<-largest-idle)/(1<<20))
		return err
	})
}

// resident is the memory in use of this process. It is 0 where the machine has no /proc.
func resident() int {
	process, err := procfs.NewProc(os.Getpid())
	if err != nil {
		return 0
	}
	stat, err := process.Stat()
	if err != nil {
		return 0
	}
	return stat.ResidentMemory()
}
