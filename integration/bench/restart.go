package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	restartEvery = time.Second / 60 // a message
	restartRests = 20 * time.Second // between two restarts, and before the first and after the last one
	maxRestarted = 60 * 60 * 60     // messages
)

// measureRestart restarts the nodes of a cluster one after the other, while messages of a group wait on its tiers.
// The good work queues are quorum queues. The others are classic queues, one on each node, which are away while their
// node is. An app on each node consumes all of them, and publishes to them.
func measureRestart(b *bench, cluster, tool string) error {
	var nodes, uris []string
	for entry := range strings.SplitSeq(cluster, ",") {
		node, uri, _ := strings.Cut(entry, "=")
		nodes, uris = append(nodes, node), append(uris, uri)
	}
	if tool == "" || len(nodes) < 2 {
		return errors.New("-cluster needs several NODE=address, and -tool the command that restarts them")
	}
	var err error
	if b.server, err = newServer(uris[0]); err != nil {
		return err
	}
	return b.in("restart", func(first string) error {
		vhost := first[strings.LastIndex(first, "/"):]
		for i := range uris {
			uris[i] = strings.TrimSuffix(uris[i], "/") + vhost
		}
		return b.restartAll(nodes, uris, tool)
	})
}

func (b *bench) restartAll(nodes, uris []string, tool string) error {
	// The number of messages is not known before: those that were not published are left out at the end.
	good, classic := newLedger(maxRestarted, always(neighbourTier)), newLedger(maxRestarted, always(neighbourTier))
	good.collect = true
	local := amqp091.Table{"x-queue-type": amqp091.QueueTypeClassic, "x-queue-leader-locator": "client-local"}
	var goodQueues, classicQueues []string
	for i, uri := range uris {
		for range 3 {
			goodQueues = append(goodQueues, fmt.Sprintf("good-%d", len(goodQueues)))
		}
		classicQueues = append(classicQueues, fmt.Sprintf("classic-%d", i))
		if err := declare(uri, neighbourConfig(uri, local), classicQueues[i]); err != nil {
			return err
		}
	}
	var apps []retry.Connection
	for _, uri := range uris {
		h := handling{handlers: 1, concurrency: workers}
		h.options.CloseTimeout = 5 * time.Second
		for _, kind := range []struct {
			ledger    *ledger
			arguments amqp091.Table
			queues    []string
		}{{good, nil, goodQueues}, {classic, local, classicQueues}} {
			rabbit, stop, err := h.consume(neighbourConfig(uri, kind.arguments), kind.ledger.onceFailed, kind.queues...)
			if err != nil {
				return err
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
	var fault error
	for i, node := range nodes {
		began := time.Now()
		if fault = restart(tool, node, uris[i]); fault != nil {
			break
		}
		fmt.Printf("%s restarted within %v\n", node, time.Since(began).Round(time.Second))
		time.Sleep(restartRests)
	}
	stop()
	fed.Wait()
	if fault != nil {
		return fault
	}
	lost := 0
	for i, l := range []*ledger{good, classic} {
		lost += l.settled(published[i])
	}
	b.claim("group_rolling_restart_good_p99", milliseconds(percentile(good.late, 0.99)))
	b.claim("group_rolling_restart_lost", float64(lost))
	if lost > 0 {
		return fmt.Errorf("lost=%d messages", lost)
	}
	return nil
}

// settled waits until all messages that were published are finished, and returns how many are lost. The broker offers
// messages that it could not dead-letter again after six minutes.
func (l *ledger) settled(published int) (lost int) {
	for deadline := time.Now().Add(6*time.Minute + 30*time.Second); ; time.Sleep(time.Second) {
		lost = published - l.back()
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
			msg := message.NewMessage(idOf(n), payload)
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

// restart stops a node in order, and starts it again.
func restart(tool, node, uri string) error {
	if _, err := broker.Run(tool, "ctl", node, "stop"); err != nil {
		return err
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Second) {
		_, err := broker.Run(tool, "start", node) // it does nothing as long as the process runs
		if err == nil {
			err = with(uri, func(*amqp091.Channel) error { return nil })
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
