package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
)

const outageWork = 50 * time.Millisecond // how long a call takes

// outageBreaker has a shorter pause than the default: it is a part of the time from recovery until the backlog is done.
var outageBreaker = retry.Breaker{MaxPause: 2 * time.Second}

func outageOptions(uri string) config.Config {
	return perQueue.config(uri, backoff.Exponential(time.Second, 5, 4))
}

// An outageApp is one of two apps that meet an outage side by side, one with a breaker and one without.
type outageApp struct {
	*ledger // of the calls while the dependency answers
	down    *atomic.Bool
	calls   atomic.Int64 // while the dependency is down
	dead    atomic.Int64
	rabbit  retry.Connection
	stop    func()
}

func startOutage(uri string, messages int, down *atomic.Bool, breaker *retry.Breaker) (a *outageApp, err error) {
	a = &outageApp{ledger: newLedger(messages, always(0)), down: down}
	h := handling{handlers: 1, concurrency: workers, observers: []retry.Observer{outcomes{of: a}}}
	settings := outageOptions(uri)
	settings.Policy.Breaker = breaker
	a.rabbit, a.stop, err = h.consume(settings, a.handle, work)
	return a, err
}

func (a *outageApp) handle(msg *message.Message) error {
	failing := a.down.Load()
	time.Sleep(outageWork)
	if failing {
		a.calls.Add(1)
		return errMeasured
	}
	a.call(msg.UUID)
	return nil
}

// outcomes counts a dead letter as finished.
type outcomes struct {
	retry.NopObserver
	of *outageApp
}

func (o outcomes) Event(e retry.Event) {
	if e.Outcome == retry.DeadLettered {
		o.of.dead.Add(1)
		o.of.call(e.MessageUUID)
	}
}

// publish publishes messages, and waits for their confirms.
func (a *outageApp) publish(from, to int) error {
	var batch []*message.Message
	for i := from; i < to; i++ {
		batch = append(batch, message.NewMessage(idOf(i), payload))
	}
	return a.rabbit.Publisher().Publish(work, batch...)
}

// measureOutage lets messages arrive evenly during an outage.
func measureOutage(b *bench) error {
	messages, lasts := b.Size(10_000, 1_000), time.Duration(b.Size(120, 10))*time.Second
	healthy := library("no outage", handling{handlers: 1, concurrency: workers}, outageOptions)
	rate, _, _, err := healthy.measure(b, newApp(load{messages: messages, work: outageWork}))
	if err != nil {
		return err
	}
	needed := float64(messages) / rate
	return b.in("outage", func(uri string) error {
		return b.in("outage", func(other string) error {
			var down atomic.Bool
			down.Store(true)
			breaker, err := startOutage(uri, messages, &down, &outageBreaker)
			if err != nil {
				return err
			}
			defer breaker.stop()
			without, err := startOutage(other, messages, &down, nil)
			if err != nil {
				return err
			}
			defer without.stop()
			if err := arrive(messages, lasts, breaker, without); err != nil {
				return err
			}
			down.Store(false)
			return b.afterOutage(breaker, without, needed)
		})
	})
}

// arrive publishes the messages to all apps evenly over the time.
func arrive(messages int, over time.Duration, apps ...*outageApp) error {
	begin := time.Now()
	for published := 0; published < messages; {
		due := min(messages, int(float64(messages)*float64(time.Since(begin))/float64(over)))
		for _, a := range apps {
			if err := a.publish(published, due); err != nil {
				return err
			}
		}
		published = due
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func (b *bench) afterOutage(breaker, without *outageApp, needed float64) error {
	up := time.Now()
	for _, row := range []struct {
		name string
		app  *outageApp
	}{{"with a breaker", breaker}, {"without", without}} {
		if err := row.app.wait(time.Minute); err != nil {
			return fmt.Errorf("%s: %w", row.name, err)
		}
		b.note("%s: %d dead letters, %d calls in the outage, backlog done after %v", row.name, row.app.dead.Load(),
			row.app.calls.Load(), row.app.recovery(up).Round(time.Millisecond))
	}
	b.claim("outage_dead_letters", float64(breaker.dead.Load()))
	b.claim("outage_calls", float64(breaker.calls.Load())/float64(without.calls.Load()))
	b.claim("outage_recovery", breaker.recovery(up).Seconds()/needed)
	return nil
}

func (a *outageApp) recovery(up time.Time) time.Duration { return a.began.Add(a.last).Sub(up) }
