package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// ladder are the tiers of these measurements. The first one is full: the first retry of a message would wait there.
var ladder = backoff.Schedule{800 * time.Millisecond, tier, 1200 * time.Millisecond}

// ladderOptions declare nothing, because a full tier has an argument that the library does not declare.
func ladderOptions(uri string) config.BuilderConfig {
	return config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: ladder[:tries-1], ExtraTiers: ladder[tries-1:], Settings: rabbitmq.Settings{Prefix: prefix, VerifyOnly: true}}
}

// onLadder is this library with three tiers.
func onLadder(name string, handlers, concurrency int) side {
	return libraryWith(name, handlers, concurrency, ladderOptions)
}

// full returns the same side with one tier of three full.
func full(s side) side {
	const firstTier = 2 // after the orphans and the dead-letter queue
	healthy := s
	s.name += ", tier full"
	s.queues = func(work string) topology.Topology {
		t := healthy.queues(work)
		t.Queues[firstTier].Arguments["x-max-length"] = 1
		t.Queues = append(t.Queues, quorum(work+".stuck", amqp091.Table{"x-max-length": 1, "x-overflow": "reject-publish"}))
		return t
	}
	s.declare = func(channel *amqp091.Channel, t topology.Topology) error {
		if err := healthy.declare(channel, t); err != nil {
			return err
		}
		return fillForGood(channel, t.Queues[firstTier].Name, t.Queues[len(t.Queues)-1].Name)
	}
	return s
}

// fillForGood fills a tier with messages that cannot leave it, because the queue that they are for is full, too.
func fillForGood(channel *amqp091.Channel, tierQueue, stuck string) error {
	if err := channel.Confirm(false); err != nil {
		return err
	}
	if err := saturate(channel, stuck); err != nil {
		return err
	}
	if err := channel.QueueBind(stuck, tierQueue, prefix+".return", false, nil); err != nil {
		return err
	}
	return saturate(channel, tierQueue)
}

// saturate publishes to a queue until it refuses all messages.
func saturate(channel *amqp091.Channel, queue string) error {
	refused := 0 // in a row: a queue that has just become longer than its limit may still take a few
	for range 1000 {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{Body: []byte("fills")})
		if err != nil {
			return err
		}
		if refused++; confirm.Wait() {
			refused = 0
		}
		if refused == 20 {
			return nil
		}
	}
	return errors.New("queue " + queue + " refuses no messages")
}

// tierFull is a contest of an app with one tier of three full against the same app without.
func (b brokerBench) tierFull() contest {
	own := onLadder("own subscriber, 1 handler of 16", 1, workers)
	stock := onLadder("watermill-amqp, 16 handlers", workers, 0)
	const work = 5 * time.Millisecond
	return contest{
		title: fmt.Sprintf("one of three tiers full: 1%% of messages fail once, the others succeed, each takes %v", work),
		sides: []side{full(own), own, full(stock), stock},
		app:   func(side) *app { return newApp(b.messages, false, work).withFew() },
		claims: []ratio{
			{"one_tier_full", full(own), own, 0.9},
			{"one_tier_full_stock", full(stock), stock, 0.9},
		},
	}
}

// crowd is a storm on 100 handlers of one process.
func (b brokerBench) crowd() contest {
	own := onLadder("own subscriber, 100 handlers of 4", 100, 4)
	return contest{
		title:  "storm on 100 handlers of one process, one of three tiers full: all messages fail once, 1% are dead-lettered",
		sides:  []side{full(own), own},
		app:    func(side) *app { return newApp(b.messages, true, 0) },
		claims: []ratio{{"storm_tier_full", full(own), own, 0.7}},
	}
}
