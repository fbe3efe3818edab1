package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/tools/child"
)

var brokerFaults = []Fault{
	{"broker-killed", needsKill, 40 * time.Second, killBroker},
	{"killed-unconfirmed", needsKill | needsProxy | needsConfirms | needsMinutes, 10 * time.Second, killUnconfirmed},
	{"leaders", needsCluster, time.Second, leaders},
	{"node-killed", needsKill | needsCluster | needsProxy, 20 * time.Second, killNode},
	{"memory-alarm", needsCtl, 22 * time.Second, memory.raise},
	{"disk-alarm", needsCtl, 22 * time.Second, disk.raise},
}

// registered is how long RabbitMQ can take to write a new quorum queue's name to the disk (Erlang's dets: 3 seconds).
// If a node is killed before that, the queue has no leader after the restart, and no client can repair it.
const registered = 4 * time.Second

func killBroker(ctx context.Context, l *Load) error {
	sleep(ctx, registered)
	for range l.rounds(3, 1) {
		if err := l.whileDead(func() { sleep(ctx, 2*time.Second) }); err != nil {
			return err
		}
		if err := errors.Join(ctx.Err(), l.broker.await(ctx)); err != nil {
			return err
		}
		l.ledger.heal()
		sleep(ctx, l.long(3*time.Second, time.Second)) // time to process messages between the crashes
	}
	return nil
}

// killUnconfirmed kills the broker while more messages are in flight than there can be calls: their copies wait for
// their confirms. It does so once: the connection that consumes comes back through the proxy.
func killUnconfirmed(ctx context.Context, l *Load) error {
	sleep(ctx, registered)
	waiting := func() bool { return l.ledger.count(connected, (*fate).isFailing) > concurrency }
	l.proxy.Disturb(broker.Line{}, broker.Line{Latency: 20 * time.Second})
	err := fmt.Errorf("at most %d failed messages waited for a confirm, so the fault had no effect", concurrency)
	if within(ctx, time.Minute, waiting) {
		err = l.whileDead(func() { sleep(ctx, time.Second) })
	}
	l.proxy.Disturb(broker.Line{}, broker.Line{})
	if err := errors.Join(err, ctx.Err(), l.broker.await(ctx)); err != nil {
		return err
	}
	l.ledger.heal()
	return nil
}

// whileDead kills the broker's node, runs do, and starts the node again even after an error.
func (l *Load) whileDead(do func()) (err error) {
	defer func() { err = errors.Join(err, run(l.broker.Start)) }()
	if err := run(l.broker.Kill); err != nil {
		return err
	}
	do()
	return nil
}

// killNode kills the node to which the app is connected. The app then reaches another node at the same address.
func killNode(ctx context.Context, l *Load) error {
	survivor, err := url.Parse(l.broker.Survivors[0])
	if err != nil {
		return err
	}
	var moved error
	err = l.whileDead(func() {
		l.proxy.Stop()
		l.proxy.Upstream = survivor.Host
		moved = l.proxy.Start()
		sleep(ctx, 10*time.Second)
	})
	return errors.Join(err, moved)
}

// alarm is one of the two alarms during which RabbitMQ blocks publishing connections.
type alarm struct {
	read   string // Erlang expression that returns the limit
	set    string // rabbitmqctl command that sets the limit
	tight  string // a limit that every node exceeds
	raised func(rabbithole.NodeInfo) bool
}

var (
	memory = alarm{
		"vm_memory_monitor:get_vm_memory_high_watermark().", "set_vm_memory_high_watermark", "0.000001",
		func(n rabbithole.NodeInfo) bool { return n.MemAlarm },
	}
	disk = alarm{
		"rabbit_disk_monitor:get_disk_free_limit().", "set_disk_free_limit", "1000000GB",
		func(n rabbithole.NodeInfo) bool { return n.DiskFreeAlarm },
	}
)

func (a alarm) raise(ctx context.Context, l *Load) (err error) {
	before, err := child.Shell(l.broker.Ctl, "eval", a.read)
	if err != nil {
		return err
	}
	before = strings.TrimSpace(before)
	if _, err := strconv.ParseFloat(before, 64); err != nil {
		return fmt.Errorf("the broker's limit is %q, which is not a number: %s could not restore it", before, a.set)
	}
	defer func() { err = errors.Join(err, run(l.broker.Ctl, a.set, before)) }()
	if err := run(l.broker.Ctl, a.set, a.tight); err != nil {
		return err
	}
	alarmed := func() bool {
		nodes, err := l.admin.ListNodes()
		return err == nil && slices.ContainsFunc(nodes, a.raised)
	}
	if !within(ctx, 20*time.Second, alarmed) {
		return errors.New("the broker raised no alarm within 20s")
	}
	sleep(ctx, l.long(20*time.Second, 4*time.Second))
	return nil
}

func (l *Load) long(full, short time.Duration) time.Duration {
	if l.Short {
		return short
	}
	return full
}

func (l *Load) rounds(full, short int) int {
	return int(l.long(time.Duration(full), time.Duration(short)))
}
