package main

import (
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

const outageWork = 50 * time.Millisecond // how long a call takes

// outageOptions have a breaker with a shorter pause than the default: it is a part of the time from recovery until the
// backlog is done.
func outageOptions(uri string) config.Config {
	c := configOf(uri, backoff.Exponential(time.Second, 5, 4))
	c.Policy.Breaker = &retry.Breaker{MaxPause: 2 * time.Second}
	return c
}

// measureOutage lets messages arrive evenly during an outage, and compares the time for the backlog with that for as
// many messages without an outage. A dead letter is lost for the ledger.
func measureOutage(b *bench) error {
	messages, lasts := b.Size(10_000, 1_000), time.Duration(b.Size(120, 10))*time.Second
	h := handling{Concurrency: workers}
	without := newApp(load{messages: messages, work: outageWork})
	rate, _, _, err := library("no outage", h, outageOptions).measure(b, without)
	if err != nil {
		return err
	}
	return b.in("outage", func(uri string) error {
		l := newLedger(messages, always(0))
		var down atomic.Bool
		down.Store(true)
		rabbit, stop, err := h.consume(outageOptions(uri), func(msg *message.Message) error {
			failing := down.Load()
			time.Sleep(outageWork)
			if failing {
				return errMeasured
			}
			l.call(msg.UUID)
			return nil
		}, work)
		if err != nil {
			return err
		}
		defer stop()
		if err := arrive(messages, lasts, rabbit.Publisher()); err != nil {
			return err
		}
		up := time.Since(l.began)
		down.Store(false)
		if err := l.wait(time.Minute); err != nil {
			return err
		}
		b.note("the backlog of %d messages is done after %v", messages, (l.last - up).Round(time.Millisecond))
		b.claim("outage_recovery", (l.last-up).Seconds()*rate/float64(messages))
		return nil
	})
}

// arrive publishes the messages evenly over the time, and waits for their confirms.
func arrive(messages int, over time.Duration, to message.Publisher) error {
	begin := time.Now()
	for published := 0; published < messages; time.Sleep(100 * time.Millisecond) {
		var batch []*message.Message
		for due := min(1, float64(time.Since(begin))/float64(over)); published < int(float64(messages)*due); published++ {
			batch = append(batch, message.NewMessage(idOf(published), payload))
		}
		if err := to.Publish(work, batch...); err != nil {
			return err
		}
	}
	return nil
}
