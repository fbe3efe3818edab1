package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// crowdRounds is how often an app is started and removed.
const crowdRounds = 20

// measureCrowd starts 16 instances of a new app together, each of which then deletes the queues of the app, and the others declare them
// again. It stops at the first round after which the broker starts no quorum queue any more: it has to be restarted then. The short form
// deletes nothing.
func measureCrowd(s *server, o settings, r *report) error {
	rounds := crowdRounds
	if o.short {
		rounds = 2
	}
	for round := range rounds {
		if err := crowdRound(s, !o.short); err != nil {
			return fmt.Errorf("round %d of %d with 16 instances: %w", round+1, rounds, err)
		}
	}
	r.claimAtMost(s, "crowd_rounds_that_fail", "", 0, 0)
	return nil
}

func crowdRound(s *server, deleting bool) error {
	uri, remove, err := s.vhost("crowd")
	if err != nil {
		return err
	}
	defer remove()
	c := crowd{layout: perQueue, uri: uri, instances: 16, handlers: 1}
	instances := c.start()
	var group sync.WaitGroup
	faults := make([]error, len(instances))
	for n, i := range instances {
		if i.err != nil {
			faults[n] = i.err
		} else if deleting {
			group.Go(func() { faults[n] = c.deleteQueues() })
		}
	}
	group.Wait()
	if deleting {
		time.Sleep(3 * time.Second) // the instances declare again
	}
	for _, i := range instances {
		if i.stop != nil {
			group.Go(i.stop)
		}
	}
	group.Wait()
	return errors.Join(errors.Join(faults...), c.startsQueues())
}

// deleteQueues deletes the queues of the app, as each instance of an app that removes its queues does.
func (c crowd) deleteQueues() error {
	builder, err := config.NewBuilder(c.layout.config(c.uri, startTiers))
	if err != nil {
		return err
	}
	return with(c.uri, func(channel *amqp091.Channel) error {
		t := builder.Topology(topicOf(0))
		for _, queue := range append([]topology.Queue{t.WorkQueue}, t.Queues...) {
			if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// startsQueues returns an error where the broker starts no quorum queue with at-least-once dead-lettering.
func (c crowd) startsQueues() error {
	return with(c.uri, func(channel *amqp091.Channel) error {
		builder, err := config.NewBuilder(c.layout.config(c.uri, startTiers))
		if err == nil {
			err = builder.Topology("afterwards").Declare(channel)
		}
		if err != nil {
			return fmt.Errorf("the broker starts no quorum queue any more, restart it: %w", err)
		}
		return nil
	})
}
