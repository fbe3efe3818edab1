package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

// measureJitter compares how evenly messages come back that have failed together, with and without jitter.
func measureJitter(b *bench) error {
	const (
		messages = 2000
		delay    = 5 * time.Second
		spreads  = 0.2
		bin      = 100 * time.Millisecond
	)
	mean := messages * float64(bin) / (float64(delay) * spreads)
	for _, jitter := range []float64{0, spreads} {
		var over []float64
		for range b.turns(5) {
			l := newLedger(messages, always(delay))
			l.calls = func(int) int { return 2 }
			l.collect = true
			if err := b.in("jitter", func(uri string) error { return wave(uri, l, jitter) }); err != nil {
				return fmt.Errorf("jitter %v: %w", jitter, err)
			}
			counts := map[time.Duration]int{}
			highest := 0
			for _, at := range l.finished {
				slot := (at - l.first) / bin
				counts[slot]++
				highest = max(highest, counts[slot])
			}
			over = append(over, float64(highest)/mean)
		}
		b.note("jitter %v: most messages that come back in %v, over the mean: %s", jitter, bin, claims.Spread(over, "%.2f"))
		if jitter > 0 {
			b.claim("jitter_highest_over_mean", claims.Median(over))
		}
	}
	return nil
}

// wave lets the messages fail when all are in flight.
func wave(uri string, l *ledger, jitter float64) error {
	c := perQueue.config(uri, backoff.Schedule{l.delay(0)})
	c.Policy.Jitter = jitter
	var arrived sync.WaitGroup
	arrived.Add(len(l.called))
	var once sync.Map
	handle := func(msg *message.Message) error {
		if _, again := once.LoadOrStore(msg.UUID, true); !again {
			arrived.Done()
			arrived.Wait()
		}
		return l.retry(msg)
	}
	rabbit, stop, err := handling{handlers: 1, concurrency: len(l.called)}.consume(c, handle, work)
	if err != nil {
		return err
	}
	defer stop()
	messages := make([]*message.Message, len(l.called))
	for i := range messages {
		messages[i] = message.NewMessage(idOf(i), payload)
	}
	if err := rabbit.Publisher().Publish(work, messages...); err != nil {
		return err
	}
	return l.wait(0)
}
