package chaos

import (
	"context"
	"errors"
	"time"
)

var consumerFaults = []Fault{
	{"consumer-killed", needsChild, 8 * time.Second, separately(killConsumer)},
	{"rolling-restart", 0, 8 * time.Second, separately(restartConsumer)},
	{"hung-handler", needsBreaker, 8 * time.Second, separately(hangHandler)},
}

// killConsumer kills the consumer with SIGKILL while handlers run.
func killConsumer(ctx context.Context, l *Load) error {
	for range l.rounds(4, 2) {
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
		l.child.kill()
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
		next, err := startApp(ctx, l.config, l.ledger)
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

// hangHandler lets all handlers fail until their breakers have paused them, and then the first one that is called hangs: a probe. The
// others have to go on.
func hangHandler(ctx context.Context, l *Load) error {
	l.ledger.down.Store(true)
	sleep(ctx, l.long(4*time.Second, 1500*time.Millisecond))
	hang := make(chan struct{})
	defer close(hang)
	l.ledger.hang.Store(&hang)
	for begin := time.Now(); l.ledger.hang.Load() != nil; {
		if time.Since(begin) > time.Minute {
			return errors.New("no handler was called for a minute after all had failed")
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	l.ledger.down.Store(false)
	before, begin := l.ledger.done(), time.Now()
	for l.ledger.done() < before+10 {
		if time.Since(begin) > time.Minute {
			return errors.New("one handler hung, and the others handled no messages for a minute")
		}
		if !sleep(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}
