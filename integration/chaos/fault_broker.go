package chaos

import (
	"context"
	"errors"
	"net/url"
	"time"
)

var brokerFaults = []Fault{
	{"broker-killed", needsKill, 40 * time.Second, killBroker},
	{"node-killed", needsKill | needsCluster | needsProxy, 20 * time.Second, killNode},
	{"memory-alarm", needsCtl, 22 * time.Second, raiseAlarm},
}

// registered is how long RabbitMQ may take to write a new quorum queue's name to the disk (Erlang's dets: 3 seconds). A node
// that is killed before has the queue as a new one when it starts again, without a leader and for ever: no client can mend that.
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
		sleep(ctx, l.long(3*time.Second, time.Second)) // some work between the crashes
	}
	return nil
}

// whileDead kills the broker's node and starts it again in any case.
func (l *Load) whileDead(do func()) (err error) {
	defer func() { err = errors.Join(err, run(l.broker.Start)) }()
	if err := run(l.broker.Kill); err != nil {
		return err
	}
	do()
	return nil
}

// killNode takes the node away to which the app is connected, and lets the app find another one at the same address.
func killNode(ctx context.Context, l *Load) error {
	survivor, err := url.Parse(l.broker.Survivors[0])
	if err != nil {
		return err
	}
	return l.whileDead(func() {
		l.proxy.Stop()
		l.proxy.Upstream = survivor.Host
		err = l.proxy.Start()
		sleep(ctx, 10*time.Second)
	})
}

func raiseAlarm(ctx context.Context, l *Load) (err error) {
	defer func() { err = errors.Join(err, l.broker.alarm(false)) }()
	if err := l.broker.alarm(true); err != nil {
		return err
	}
	sleep(ctx, l.long(20*time.Second, 6*time.Second))
	return nil
}

func (l *Load) long(full, short time.Duration) time.Duration {
	if l.Short {
		return short
	}
	return full
}

func (l *Load) rounds(full, short int) int {
	if l.Short {
		return short
	}
	return full
}
