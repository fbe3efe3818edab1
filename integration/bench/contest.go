package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const tier = time.Second // how long a message waits

// A load is what the sides of a contest have to handle.
type load struct {
	messages  int
	failEvery int           // one of this many messages fails once; 0: none fails
	work      time.Duration // how long a call takes
}

// An app is the handler that all sides of a contest run.
type app struct {
	*ledger
	load
	gate   chan struct{} // closed when the measurement begins: every side consumes by then
	opened time.Duration // when the gate was closed
}

func newApp(l load) *app {
	a := &app{load: l, ledger: newLedger(l.messages, always(tier)), gate: make(chan struct{})}
	a.calls = func(i int) int {
		if a.failEvery > 0 && i%a.failEvery == 0 {
			return 2
		}
		return 1
	}
	return a
}

// handle is called for each delivery. An error means that the message has to be retried.
func (a *app) handle(id string) error {
	<-a.gate
	time.Sleep(a.work)
	if _, again := a.call(id); again {
		return errMeasured
	}
	return nil
}

// deliveries is how many calls finish all messages.
func (a *app) deliveries() (all int) {
	for i := range a.called {
		all += a.calls(i)
	}
	return all
}

// A side is one way to consume a work queue and to retry what fails.
type side struct {
	name    string
	declare func(uri string) error
	consume func(uri string, a *app) (stop func(), err error) // returns when it consumes with all of its concurrency
}

// A ratio is a claim about the rates of two sides within the same round, or about the processor time of this process
// for a delivery.
type ratio struct {
	claim, ours, theirs string
	processor           bool
}

// A contest measures sides in turns.
type contest struct {
	title  string
	rounds int // 0: 5
	sides  []side
	load   load
	ratios []ratio
}

// measure compares deliveries a second.
func (c contest) measure(b *bench) error {
	own, ofBroker := make([][]float64, len(c.sides)), make([][]float64, len(c.sides))
	rates, err := claims.Alternate(b.Turns(cmp.Or(c.rounds, 5)), len(c.sides), func(i int) (float64, error) {
		rate, spent, brokerSpent, err := c.sides[i].measure(b, newApp(c.load))
		own[i], ofBroker[i] = append(own[i], spent), append(ofBroker[i], brokerSpent)
		return rate, err
	})
	if err != nil {
		return err
	}
	b.note("%s. Deliveries a second, and µs of processor time for each, of this process and the broker's:", c.title)
	rateOf, ownOf := map[string][]float64{}, map[string][]float64{}
	for i, s := range c.sides {
		rateOf[s.name], ownOf[s.name] = rates[i], own[i]
		b.note("  %s: %s, %s, %s", s.name, claims.Spread(rates[i], "%.0f"), claims.Digits(claims.Median(own[i])),
			claims.Digits(claims.Median(ofBroker[i])))
	}
	for _, r := range c.ratios {
		figures := rateOf
		if r.processor {
			figures = ownOf
		}
		b.ratio(r.claim, figures[r.ours], figures[r.theirs])
	}
	return nil
}

var notInName = regexp.MustCompile("[^a-zA-Z0-9]+")

// measure returns deliveries a second, and the processor time of this process and of the broker's for each, in µs.
func (s side) measure(b *bench, a *app) (rate, own, ofBroker float64, err error) {
	err = b.in("contest", func(uri string) error {
		if err := errors.Join(s.declare(uri), fill(uri, work, a.messages)); err != nil {
			return err
		}
		stop, err := s.consume(uri, a)
		if err != nil {
			return err
		}
		profile := b.Profiles
		if profile != "" {
			name := b.series() + "-" + b.question + "-" + notInName.ReplaceAllString(s.name, "-") + ".pprof"
			profile = filepath.Join(profile, name)
		}
		endProfile, err := claims.Profile(profile)
		if err != nil {
			return err
		}
		spent := b.spentBy()
		a.opened = time.Since(a.began)
		close(a.gate)
		if err = errors.Join(a.wait(0), endProfile()); err != nil { // without a stop: a side that has lost messages may hang
			return err
		}
		deliveries := a.deliveries()
		own, ofBroker = spent(deliveries)
		rate = float64(deliveries) / (a.last - a.opened).Seconds()
		stop()
		return nil
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return rate, own, ofBroker, err
}

// library is this library, with one handler of one work queue.
func library(name string, h handling, options func(uri string) config.Config) side {
	return side{
		name:    name,
		declare: func(uri string) error { return declare(uri, options(uri), work) },
		consume: func(uri string, a *app) (func(), error) {
			_, stop, err := h.consume(options(uri), func(msg *message.Message) error { return a.handle(msg.UUID) },
				work)
			return stop, err
		},
	}
}

// A failure is a failed message that is published again.
type failure struct {
	delivery amqp091.Delivery
	confirm  *amqp091.DeferredConfirmation
}

// fail publishes a failed message to the queue on which it waits.
func (p *pipeline) fail(d amqp091.Delivery) (failure, error) {
	failures, _ := d.Headers[triesHeader].(int32)
	confirm, err := p.send("", work+".waiting", byHand(identity(d), failures+1))
	return failure{d, confirm}, err
}

// ack acks a failed message that is published again. Without it, the message is lost for the measurement, which
// reports that.
func (p *pipeline) ack(f failure) {
	if err := p.settled(f.confirm); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return
	}
	_ = f.delivery.Ack(false)
}

// handPipelined never waits for a single confirm: a second goroutine acks what is confirmed. It is the limit of this
// client.
var handPipelined = side{
	name: "amqp091-go, pipelined",
	declare: func(uri string) error {
		return with(uri, func(channel *amqp091.Channel) error {
			return errors.Join(declareQuorum(channel, work, nil),
				declareQuorum(channel, work+".waiting", tierByHand(tier, work)))
		})
	},
	consume: func(uri string, a *app) (func(), error) {
		p, err := newPipeline(uri)
		if err != nil {
			return nil, err
		}
		published := make(chan failure, inFlight)
		var group sync.WaitGroup
		group.Go(func() {
			for f := range published {
				p.ack(f)
			}
		})
		stop, err := consumeByHand(uri, work, 1, inFlight, func(d amqp091.Delivery) {
			if a.handle(identity(d)) == nil {
				_ = d.Ack(false)
			} else if f, err := p.fail(d); err == nil {
				published <- f
			}
		})
		return func() { stop(); close(published); group.Wait(); p.close() }, err
	},
}
