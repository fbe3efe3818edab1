package chaos

import (
	"context"
	"time"
)

var consumerFaults = []Fault{
	{"consumer-killed", needsChild, 8 * time.Second, separately(killConsumer)},
	{"rolling-restart", 0, 8 * time.Second, separately(restartConsumer)},
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
