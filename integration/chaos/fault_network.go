package main

import (
	"context"
	"time"

	"github.com/tieredretry/watermill-retry/integration/broker"
)

var networkFaults = []Fault{
	{"network-cut", needsProxy, 18 * time.Second, cutNetwork},
	{"latency-200ms", needsProxy, 12 * time.Second, func(ctx context.Context, l *Load) error {
		return l.disturb(ctx, l.long(12*time.Second, 4*time.Second), broker.Line{Latency: 200 * time.Millisecond})
	}},
	{"slow-drip", needsProxy, 12 * time.Second, func(ctx context.Context, l *Load) error {
		return l.disturb(ctx, l.long(12*time.Second, 4*time.Second), broker.Line{Rate: 2000})
	}},
	{"half-open", needsProxy, 14 * time.Second, halfOpen},
}

func cutNetwork(ctx context.Context, l *Load) error {
	for range l.rounds(3, 2) {
		l.proxy.Stop()
		sleep(ctx, l.long(3*time.Second, time.Second))
		if err := l.proxy.Start(); err != nil {
			return err
		}
		l.ledger.heal()
		sleep(ctx, l.long(3*time.Second, 2*time.Second))
	}
	return nil
}

// halfOpen is longer than the heartbeat timeout.
func halfOpen(ctx context.Context, l *Load) error {
	return l.disturb(ctx, l.long(14*time.Second, 8*time.Second), broker.Line{Lost: true})
}

// disturb changes the lines of both sides for the duration.
func (l *Load) disturb(ctx context.Context, duration time.Duration, line broker.Line) error {
	l.proxy.Disturb(line, line)
	defer l.proxy.Disturb(broker.Line{}, broker.Line{})
	sleep(ctx, duration)
	return nil
}
