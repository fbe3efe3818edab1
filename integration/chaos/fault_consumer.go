package main

import (
	"context"
	"errors"
	"time"
)

var consumerFaults = []Fault{
	{"consumer-killed", 0, 8 * time.Second, killWorkers(4, 2, time.Second)},
	{"rolling-restart", 0, 8 * time.Second, deploy(5, 2)},
	{"hung-handler", needsBreaker, 8 * time.Second, hangHandler},
}

// killWorkers kills a process with SIGKILL while handlers run, so often, and starts another one: the only process, or
// the one with the most partitions.
func killWorkers(full, short int, pause time.Duration) func(context.Context, *Load) error {
	return func(ctx context.Context, l *Load) error {
		for range l.rounds(full, short) {
			if !sleep(ctx, l.long(pause, time.Second)) {
				return ctx.Err()
			}
			victim := l.ledger.owner()
			if l.workers[victim] == nil {
				victim = l.ids()[0]
			}
			l.take(victim).Kill()
			l.ledger.heal()
			if err := l.startWorker(); err != nil {
				return err
			}
		}
		return nil
	}
}

// deploy replaces each process so often: the new one starts before the old one is told to end, while its handlers run.
func deploy(full, short int) func(context.Context, *Load) error {
	return func(ctx context.Context, l *Load) error {
		for range l.rounds(full, short) {
			for _, id := range l.ids() {
				if err := errors.Join(l.startWorker(), l.terminate(id)); err != nil {
					return err
				}
				l.ledger.heal()
				if !sleep(ctx, time.Second) {
					return ctx.Err()
				}
			}
		}
		return nil
	}
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
		before := l.ledger.count(which, (*fate).isProcessed)
		if !within(ctx, time.Minute, func() bool { return l.ledger.count(which, (*fate).isProcessed) >= before+10 }) {
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
