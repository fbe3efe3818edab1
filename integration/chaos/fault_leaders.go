package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// leaders disturbs nothing. It declares the queues of 24 work queues over one connection to the first node: their
// leaders are on all nodes of the cluster. With client-local leaders, the control, they are not.
func leaders(ctx context.Context, l *Load) error {
	nodes := len(l.broker.Survivors) + 1
	for _, locator := range []string{"balanced", "client-local"} {
		on, err := l.declareLocated(ctx, l.config.Name+"-"+locator, locator)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "fault=leaders broker=%s locator=%s leaders: %v\n", l.broker.Name, locator, on)
		total := 0
		for _, count := range on {
			total += count
		}
		if total < 24 {
			return fmt.Errorf("leaders: the broker lists %d queues", total)
		}
		fewest := slices.Min(slices.Collect(maps.Values(on)))
		spread := len(on) == nodes && fewest >= total/6 // a third would be even
		if spread != (locator == "balanced") {
			return fmt.Errorf("leaders: with the locator %s the nodes lead %v of %d queues", locator, on, total)
		}
	}
	return nil
}

// declareLocated declares 12 work queues with tiers of their own, and 12 of a group, classic, so that they have
// inboxes. It returns how many leaders are on each node, and deletes all of it.
func (l *Load) declareLocated(ctx context.Context, prefix, locator string) (on map[string]int, err error) {
	connection, err := amqp091.Dial(l.broker.URL)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return nil, err
	}
	config := topology.Config{
		Tiers: backoff.Schedule{time.Second, 5 * time.Second, 25 * time.Second, 2 * time.Minute,
			10 * time.Minute}.Tiers(), Prefix: prefix,
	}
	if locator != "balanced" { // which is the default
		config.TierArguments = amqp091.Table{"x-queue-leader-locator": locator}
		config.DeadLetterArguments = config.TierArguments
	}
	for i := range 24 {
		work := topology.Queue{Name: fmt.Sprintf("%s-work%d", prefix, i), Durable: true}
		if i%2 == 0 {
			config.TierGroup, config.WorkQueueMode = "", topology.Protect
		} else {
			config.TierGroup, config.WorkQueueMode = prefix+"-group", topology.Leave
		}
		t := topology.New(config, work)
		if err := t.Declare(channel); err != nil {
			return nil, err
		}
		defer func() {
			for _, q := range append(t.Queues, t.WorkQueue) {
				_, fault := channel.QueueDelete(q.Name, false, false, false)
				err = errors.Join(err, fault)
			}
			for _, e := range t.Exchanges {
				err = errors.Join(err, channel.ExchangeDelete(e.Name, false, false))
			}
		}()
	}
	return l.leaderNodes(ctx, prefix)
}

// leaderNodes waits until the management API lists the leaders of the tiers, dead letters and inboxes whose names begin
// with the prefix. It returns how many are on each node.
func (l *Load) leaderNodes(ctx context.Context, prefix string) (map[string]int, error) {
	ours := regexp.MustCompile("^" + regexp.QuoteMeta(prefix) + "(?:.*[.](?:dead|inbox)$|.*[.]" +
		regexp.QuoteMeta(prefix) + "[.])")
	var on map[string]int
	listed := within(ctx, time.Minute, func() bool {
		queues, err := l.admin.ListQueuesWithParameters(url.Values{"columns": {"name,node"}})
		on = map[string]int{}
		for _, q := range queues {
			if ours.MatchString(q.Name) {
				on[q.Node]++
			}
		}
		return err == nil && on[""] == 0
	})
	if !listed {
		return nil, errors.New("the management API did not list the leaders of all queues within a minute")
	}
	return on, nil
}
