package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/tieredretry/watermill-retry/tools/child"
)

const (
	orderNone    = "order-none"
	orderKilled  = "order-killed"
	orderDeploy  = "order-deploy"
	orderTimeout = "order-consumer-timeout"
	orderRewinds = "order-rewinds"
)

// noticed has the faults in which a process that loses a partition gives it back itself, or is dead.
var noticed = map[string]bool{
	orderNone: true, orderKilled: true, orderDeploy: true, orderTimeout: true, orderRewinds: true,
}

var orderFaults = []Fault{
	{orderNone, needsOrder | needsMinutes, 15 * time.Second, func(context.Context, *Load) error { return nil }},
	{orderKilled, needsOrder, 40 * time.Second, killWorkers(10, 3, 3*time.Second)},
	{"order-stopped", needsOrder | needsMinutes, 95 * time.Second, stopOwner},
	{orderDeploy, needsOrder, 30 * time.Second, deploy(3, 1)},
	{"order-network-cut", needsOrder | needsMinutes | needsProxy, 18 * time.Second, cutNetwork},
	{"order-half-open", needsOrder | needsProxy, 14 * time.Second, halfOpen},
	{orderRewinds, needsOrder, 20 * time.Second, rewind},
	{"order-broker-killed", needsOrder | needsMinutes | needsKill, 40 * time.Second, killBroker},
	{"order-node-killed", needsOrder | needsKill | needsCluster | needsProxy, 20 * time.Second, killNode},
	{"order-memory-alarm", needsOrder | needsMinutes | needsCtl, 22 * time.Second, memory.raise},
	{orderTimeout, needsOrder | needsMinutes | needsCtl | needsTimeout, 65 * time.Second, timeOut},
}

// stopOwner stops the process with the most partitions until the broker has given them to another one. Then it goes
// on, and does not know.
func stopOwner(ctx context.Context, l *Load) (err error) {
	sleep(ctx, l.long(3*time.Second, time.Second))
	owner := l.ledger.owner()
	process := l.workers[owner].Process
	defer func() { err = errors.Join(err, process.Signal(syscall.SIGCONT)) }()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	sleep(ctx, l.long(90*time.Second, 12*time.Second))
	if l.ledger.owns(owner) {
		return errors.New("the process was stopped, and no other one got messages of its partitions")
	}
	return nil
}

// rewind makes a handler nack a message every two seconds.
func rewind(ctx context.Context, l *Load) error {
	for range l.rounds(10, 3) {
		l.ledger.nacks.Add(1)
		sleep(ctx, l.long(2*time.Second, time.Second))
	}
	if l.ledger.nacks.Load() > 0 {
		return errors.New("no message was nacked: the fault had no effect")
	}
	return nil
}

// consumerTimeout is that of the broker in one row.
const consumerTimeout = 10 * time.Second

// timeOut makes a message wait for several times the consumer timeout.
func timeOut(ctx context.Context, l *Load) (err error) {
	const variable = "application:%s_env(rabbit, consumer_timeout%s)."
	before, err := child.Shell(l.broker.Ctl, "eval", fmt.Sprintf(variable, "get", ""))
	if err != nil {
		return err
	}
	restore := fmt.Sprintf(variable, "unset", "")
	if value, set := strings.CutPrefix(strings.TrimSpace(before), "{ok,"); set {
		restore = fmt.Sprintf(variable, "set", ", "+strings.TrimSuffix(value, "}"))
	}
	defer func() { err = errors.Join(err, run(l.broker.Ctl, "eval", restore)) }()
	if err := run(l.broker.Ctl, "eval",
		fmt.Sprintf(variable, "set", fmt.Sprintf(", %d", consumerTimeout.Milliseconds()))); err != nil {
		return err
	}
	wait := l.long(60*time.Second, 12*time.Second)
	sessions := l.ledger.hold(wait)
	sleep(ctx, wait+time.Second)
	if got := l.ledger.sessions(); got < sessions+int(wait/consumerTimeout) {
		return fmt.Errorf("a message waited for %v, and there were only %d new sessions", wait, got-sessions)
	}
	return nil
}
