package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/tools/child"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	restartEvery = time.Second / 60 // a message
	restartRests = 20 * time.Second // between two restarts, and before the first and after the last one
	maxRestarted = 60 * 60 * 60     // messages
)

// shopTier is how long the messages of the group wait.
const shopTier = 5 * time.Second

// shopConfig is a group whose work queues have these arguments.
func shopConfig(uri string, arguments amqp091.Table) config.Config {
	c := configOf(uri, backoff.Constant(shopTier, 1))
	c.Policy.TierGroup, c.Policy.ExtraTiers = "shop", c.Policy.Schedule // without the ladder
	c.AMQP.Queue.Arguments = arguments
	c.AMQP.Connection.Reconnect = amqp.DefaultReconnectConfig()
	c.AMQP.Connection.Reconnect.BackoffMaxInterval = time.Second
	return c
}

// onceFailed is a handler that fails at the first delivery of each message, and again where its copy was not published.
func onceFailed(l *claims.Ledger) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		if failuresOf(msg) == 0 && l.Fail(msg.UUID) {
			return errMeasured
		}
		l.Call(msg.UUID, 1)
		return nil
	}
}

// A cluster is the nodes that are restarted, and the command that restarts them.
type cluster struct {
	nodes, uris []string
	tool        string
}

// measureRestart restarts the nodes of a cluster one after the other, while messages of a group wait on its tiers: once
// each node is stopped as it is, and once it is drained before.
func measureRestart(b *bench, members, tool string) error {
	c := cluster{tool: tool}
	for member := range strings.SplitSeq(members, ",") {
		node, uri, _ := strings.Cut(member, "=")
		c.nodes, c.uris = append(c.nodes, node), append(c.uris, uri)
	}
	if tool == "" || len(c.nodes) < 2 {
		return errors.New("-cluster needs several NODE=address, and -tool the command that restarts them")
	}
	var err error
	if b.server, err = newServer(c.uris[0]); err != nil {
		return err
	}
	lost := 0
	for _, side := range []struct {
		claim string
		stop  func(node string) error
	}{
		{"group_rolling_restart_good_p99", c.stop},
		{"group_rolling_restart_drained_p99", c.drainAndStop},
	} {
		err := b.in("restart", func(uri string) error {
			late, missing, err := c.restartAll(uri[strings.LastIndex(uri, "/"):], side.stop)
			if err == nil {
				b.claim(side.claim, milliseconds(claims.Percentile(late, 0.99)))
			}
			lost += missing
			return err
		})
		if err != nil {
			return err
		}
	}
	b.claim("group_rolling_restart_lost", float64(lost))
	if lost > 0 {
		return fmt.Errorf("lost=%d messages", lost)
	}
	return nil
}

// restartAll returns how late the messages of the good work queues were, and how many messages of all are lost. The
// good work queues are quorum queues. The others are classic queues, one on each node, which are away while their node
// is. An app on each node consumes all of them, and publishes to them.
func (c cluster) restartAll(vhost string, stopNode func(string) error) (late []time.Duration, lost int, err error) {
	uris := slices.Clone(c.uris)
	for i := range uris {
		uris[i] = strings.TrimSuffix(uris[i], "/") + vhost
	}
	// The number of messages is not known before: those that were not published are left out at the end.
	good, classic := newLedger(maxRestarted, claims.Always(shopTier)), newLedger(maxRestarted, claims.Always(shopTier))
	onItsNode := amqp091.Table{"x-queue-type": amqp091.QueueTypeClassic} // by default that of the client
	var goodQueues, classicQueues []string
	for i, uri := range uris {
		for range 3 {
			goodQueues = append(goodQueues, fmt.Sprintf("good-%d", len(goodQueues)))
		}
		classicQueues = append(classicQueues, fmt.Sprintf("classic-%d", i))
		if err := declare(uri, shopConfig(uri, onItsNode), classicQueues[i]); err != nil {
			return nil, 0, err
		}
	}
	var apps []retry.Connection
	for _, uri := range uris {
		h := handling{Concurrency: workers}
		h.CloseTimeout = 5 * time.Second
		for _, kind := range []struct {
			ledger    *claims.Ledger
			arguments amqp091.Table
			queues    []string
		}{{good, nil, goodQueues}, {classic, onItsNode, classicQueues}} {
			rabbit, stop, err := h.consume(shopConfig(uri, kind.arguments), onceFailed(kind.ledger), kind.queues...)
			if err != nil {
				return nil, 0, err
			}
			defer stop()
			apps = append(apps, rabbit)
		}
	}
	feeding, stop := context.WithCancel(context.Background())
	var fed sync.WaitGroup
	var published [2]int
	fed.Go(func() { published[0] = feed(feeding, apps, goodQueues) })
	fed.Go(func() { published[1] = feed(feeding, apps, classicQueues) })
	time.Sleep(restartRests)
	for i, node := range c.nodes {
		began := time.Now()
		if err = stopNode(node); err == nil {
			err = c.start(node, uris[i])
		}
		if err != nil {
			break
		}
		fmt.Printf("%s restarted within %v\n", node, time.Since(began).Round(time.Second))
		time.Sleep(restartRests)
	}
	stop()
	fed.Wait()
	if err == nil {
		// RabbitMQ 3.10 forgets the bindings of a classic queue while its node is stopped.
		_, err = redrive(uris[0], "retry.orphans")
	}
	if err != nil {
		return nil, 0, err
	}
	for i, l := range []*claims.Ledger{good, classic} {
		lost += unsettled(l, published[i])
	}
	return good.Late, lost, nil
}

// unsettled waits until all messages that were published are finished, and returns how many are lost. The broker offers
// messages that it could not dead-letter again after six minutes.
func unsettled(l *claims.Ledger, published int) (lost int) {
	for deadline := time.Now().Add(6*time.Minute + 30*time.Second); ; time.Sleep(time.Second) {
		lost = published - l.Back()
		if lost <= 0 || time.Now().After(deadline) {
			return lost
		}
	}
}

// feed publishes to the queues in turn until the context ends, and returns how many messages it has published. A
// message that one app cannot publish is published by the next one: it may arrive twice.
func feed(ctx context.Context, apps []retry.Connection, queues []string) (published int) {
	slots := make(chan struct{}, 500)
	var running sync.WaitGroup
	var failed atomic.Int64
	tick := time.NewTicker(2 * restartEvery)
	defer tick.Stop()
	for ; published < maxRestarted && ctx.Err() == nil; published++ {
		<-tick.C
		slots <- struct{}{}
		n := published
		running.Go(func() {
			defer func() { <-slots }()
			msg := message.NewMessage(claims.ID(n), payload)
			for try := range 600 {
				if apps[(n+try)%len(apps)].Publisher().Publish(queues[n%len(queues)], msg) == nil {
					return
				}
				time.Sleep(500 * time.Millisecond)
			}
			failed.Add(1)
		})
	}
	running.Wait()
	return published - int(failed.Load())
}

// stop stops a node in order.
func (c cluster) stop(node string) error {
	_, err := child.Shell(c.tool, "ctl", node, "stop")
	return err
}

// drainAndStop calls what rabbitmq-upgrade drain calls: the tool has rabbitmqctl only.
func (c cluster) drainAndStop(node string) error {
	if _, err := child.Shell(c.tool, "ctl", node, "eval", "rabbit_maintenance:drain()."); err != nil {
		return err
	}
	return c.stop(node)
}

// start starts a node that was stopped.
func (c cluster) start(node, uri string) error {
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
		_, err := child.Shell(c.tool, "start", node) // it does nothing as long as the process runs
		if err == nil {
			err = with(uri, func(*amqp091.Channel) error { return nil })
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
