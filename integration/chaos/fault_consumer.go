package main

import (
	"context"
	"errors"
	"time"
)

var consumerFaults = []Fault{
	{"consumer-killed", needsChild, 8 * time.Second, killConsumer},
	{"rolling-restart", 0, 8 * time.Second, restartConsumer},
	{"hung-handler", needsBreaker, 8 * time.Second, hangHandler},
}

// killConsumer kills the consumer with SIGKILL while handlers run.
func killConsumer(ctx context.Context, l *Load) error {
	for range l.rounds(4, 2) {
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
		l.child.Kill()
		l.child = nil
		l.ledger.heal()
		if err := l.startChild(); err != nil {
			return err
		}
	}
	return nil
}

// restartConsumer shuts an app down while its handlers run and the next app has already started.
func restartConsumer(ctx context.Context, l *Load) error {
	for range l.rounds(5, 2) {
		next, err := startApp(l.config, l.ledger)
		if err != nil {
			return err
		}
		old := l.app
		l.app = next
		if err := old.close(); err != nil {
			return err
		}
		l.ledger.heal()
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
	return nil
}

// hangHandler lets all handlers fail until their breakers have paused them, and then the first one of each work queue
// that is called hangs: a probe. The others have to go on.
func hangHandler(ctx context.Context, l *Load) error {
	l.ledger.down.Store(true)
	sleep(ctx, l.long(4*time.Second, 1500*time.Millisecond))
	hang := make(chan struct{})
	defer close(hang)
	for which := range workQueues {
		l.ledger.hang[which].Store(&hang)
	}
	for which := range workQueues {
		called := func() bool { return l.ledger.hang[which].Load() == nil }
		if !within(ctx, time.Minute, called) {
			return errors.New("no handler was called for a minute after all had failed")
		}
	}
	l.ledger.down.Store(false)
	for which := range workQueues {
		before := l.ledger.done(which)
		if !within(ctx, time.Minute, func() bool { return l.ledger.done(which) >= before+10 }) {
			return errors.New("one handler hung, and the others handled no messages for a minute")
		}
	}
	return nil
}

// within waits for an event.
func within(ctx context.Context, d time.Duration, happened func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for !happened() {
		if !sleep(ctx, 100*time.Millisecond) {
			return false
		}
	}
	return true
}
