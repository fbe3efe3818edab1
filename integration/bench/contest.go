package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const tier = time.Second // how long a message waits

// A side is one way to consume a work queue and to retry what fails.
type side struct {
	name    string
	declare func(uri string) error
	consume func(uri string, l *claims.Ledger) (stop func(), err error) // returns when it consumes
}

// A contest measures two sides in turns: this library, and another way.
type contest struct {
	title       string
	rounds      int
	messages    int
	failEvery   int // one of this many messages fails once
	ours, other side
	rate        string // the claim about the deliveries a second
	processor   string // the claim about the processor time of this process for a delivery; empty: none
}

func measureStorm(b *bench) error {
	messages := b.Size(10_000, 2_000)
	return contest{
		title:  fmt.Sprintf("Storm: %d messages fail once, tier of %v", messages, tier),
		rounds: 5, messages: messages, failEvery: 1,
		// As many messages in flight as the side by hand, which waits for no single confirm.
		ours: library("library, own subscriber, 1 handler of 256",
			handling{Concurrency: inFlight, Prefetch: inFlight}),
		other: handPipelined,
		rate:  "storm_one_handler", processor: "storm_cpu",
	}.measure(b)
}

// measureWorker measures one handler of which 5% of the messages fail once. The queue is filled first.
func measureWorker(b *bench) error {
	return contest{
		title:  "One handler, 5% of the messages fail once",
		rounds: 1, messages: b.Size(2_000, 60), failEvery: 20,
		ours: library("library, watermill-amqp's subscriber", handling{}), other: waitingInHandler,
		rate: "worker_watermill_amqp",
	}.measure(b)
}

// measure compares deliveries a second.
func (c contest) measure(b *bench) error {
	sides := []side{c.ours, c.other}
	var own, ofBroker [2][]float64
	rates, err := b.Compare(c.title+", deliveries a second", c.rounds, []string{c.ours.name, c.other.name},
		func(i int) (float64, error) {
			rate, spent, brokerSpent, err := c.play(b, sides[i])
			own[i], ofBroker[i] = append(own[i], spent), append(ofBroker[i], brokerSpent)
			return rate, err
		})
	if err != nil {
		return err
	}
	for i, s := range sides {
		fmt.Printf("%s: %s µs of processor time for each in this process, %s in the broker's\n", s.name,
			claims.Digits(claims.Median(own[i])), claims.Digits(claims.Median(ofBroker[i])))
	}
	b.ratio(c.rate, rates[0], rates[1])
	if c.processor != "" {
		b.ratio(c.processor, own[0], own[1])
	}
	return nil
}

var notInName = regexp.MustCompile("[^a-zA-Z0-9]+")

// play returns deliveries a second, and the processor time of this process and of the broker's for each, in µs.
func (c contest) play(b *bench, s side) (rate, own, ofBroker float64, err error) {
	l := newLedger(c.messages, claims.Always(tier))
	l.Fails = func(message int) bool { return message%c.failEvery == 0 }
	deliveries := c.messages + (c.messages+c.failEvery-1)/c.failEvery
	err = b.in("contest", func(uri string) error {
		if err := errors.Join(s.declare(uri), fill(uri, work, c.messages)); err != nil {
			return err
		}
		stop, err := s.consume(uri, l)
		if err != nil {
			return err
		}
		profile := b.Profiles
		if profile != "" {
			name := b.series() + "-" + b.question + "-" + notInName.ReplaceAllString(s.name, "-") + ".pprof"
			profile = filepath.Join(profile, name)
		}
		spent := b.spentBy()
		took, err := l.Race(profile)
		if err != nil { // without a stop: a side that has lost messages may hang
			return err
		}
		own, ofBroker = spent(deliveries)
		rate = float64(deliveries) / took.Seconds()
		stop()
		return nil
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", s.name, err)
	}
	return rate, own, ofBroker, err
}

// library is this library, with one handler of one work queue.
func library(name string, h handling) side {
	options := func(uri string) config.Config { return configOf(uri, backoff.Constant(tier, 2)) }
	return side{
		name:    name,
		declare: func(uri string) error { return declare(uri, options(uri), work) },
		consume: func(uri string, l *claims.Ledger) (func(), error) {
			_, stop, err := h.consume(options(uri), func(msg *message.Message) error {
				if l.Handle(msg.UUID, failuresOf(msg)) {
					return errMeasured
				}
				return nil
			}, work)
			return stop, err
		},
	}
}

// waitingInHandler is Watermill's Retry, which waits in the handler.
var waitingInHandler = side{
	name: "Watermill's Retry, watermill-amqp's subscriber",
	declare: func(uri string) error {
		return with(uri, func(channel *amqp091.Channel) error { return declareQuorum(channel, work, nil) })
	},
	consume: func(uri string, l *claims.Ledger) (func(), error) {
		c := amqp.NewDurableQueueConfig(uri)
		c.TopologyBuilder = nothing{}
		subscriber, err := amqp.NewSubscriber(c, watermill.NopLogger{}) // the router closes it
		if err != nil {
			return nil, err
		}
		router := message.NewDefaultRouter(watermill.NopLogger{})
		retry := watermillmw.Retry{MaxRetries: 3, InitialInterval: tier, Multiplier: 1}
		handle := func(msg *message.Message) error {
			if l.Handle(msg.UUID, len(msg.Metadata[triesHeader])) {
				msg.Metadata[triesHeader] += "x"
				return errMeasured
			}
			return nil
		}
		router.AddConsumerHandler("billing", work, subscriber, handle).AddMiddleware(retry.Middleware)
		stop, err := broker.Run(router)
		return func() { _ = stop() }, err
	},
}

// handPipelined never waits for a single confirm: a second goroutine acks what is confirmed. It is the limit of this
// client.
var handPipelined = side{
	name: "amqp091-go, pipelined",
	declare: func(uri string) error {
		return with(uri, func(channel *amqp091.Channel) error {
			return errors.Join(declareQuorum(channel, work, nil), declareQuorum(channel, waiting, tierByHand(tier, work)))
		})
	},
	consume: func(uri string, l *claims.Ledger) (func(), error) {
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
			if !l.Handle(identity(d), tries(d)) {
				_ = d.Ack(false)
			} else if f, err := p.fail(d, 0); err == nil {
				published <- f
			}
		})
		return func() { stop(); close(published); group.Wait(); p.close() }, err
	},
}
