package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

var networkFaults = []Fault{
	{"network-cut", needsProxy, 18 * time.Second, cutNetwork},
	{"latency-200ms", needsProxy, 12 * time.Second, func(ctx context.Context, l *Load) error {
		return l.disturb(ctx, l.long(12*time.Second, 4*time.Second), "latency", `"latency":200`)
	}},
	{"slow-drip", needsProxy, 12 * time.Second, func(ctx context.Context, l *Load) error {
		return l.disturb(ctx, l.long(12*time.Second, 4*time.Second), "bandwidth", `"rate":2`) // KB/s
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
	return l.disturb(ctx, l.long(14*time.Second, 8*time.Second), "timeout", `"timeout":0`)
}

// disturb adds a toxic in both directions for the duration.
func (l *Load) disturb(ctx context.Context, duration time.Duration, kind, attributes string) error {
	return l.under(ctx, "upstream", kind, attributes, func() error {
		return l.under(ctx, "downstream", kind, attributes, func() error { sleep(ctx, duration); return nil })
	})
}

// under adds a toxic in one direction, and removes it after during. "downstream" is what the broker sends.
func (l *Load) under(ctx context.Context, stream, kind, attributes string, during func() error) error {
	toxic := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":{%s}}`, stream, kind, stream, attributes)
	if _, err := l.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		return err
	}
	err := during()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return errors.Join(err, l.proxy.Toxics.RemoveToxic(ctx, stream))
}
