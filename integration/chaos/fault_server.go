package chaos

import (
	"context"
	"errors"
	"time"
)

var serverFaults = []Fault{
	{"connections-closed", 0, 10 * time.Second, closeConnections},
	{"channel-errors", 0, 6 * time.Second, deleteExchange},
	{"permissions-revoked", 0, 9 * time.Second, revoke},
	{"password-changed", 0, 9 * time.Second, changePassword},
}

// closeConnections closes those of the app's user, several times.
func closeConnections(ctx context.Context, l *Load) error {
	for range l.rounds(4, 2) {
		if err := closeListed(ctx, l); err != nil {
			return err
		}
		l.ledger.heal()
		sleep(ctx, l.long(3*time.Second, 2*time.Second))
	}
	return nil
}

// closeListed waits until the management API lists a connection of the app's, which takes it some seconds, and closes all.
func closeListed(ctx context.Context, l *Load) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for closed := 0; closed == 0; sleep(ctx, 100*time.Millisecond) {
		if ctx.Err() != nil {
			return errors.New("no connection of the app's is listed, so none was closed")
		}
		connections, err := l.admin.ListConnections()
		if err != nil {
			return err
		}
		for _, c := range connections {
			if c.User == l.user {
				if _, err := l.admin.CloseConnection(c.Name); err == nil {
					closed++
				}
			}
		}
	}
	return nil
}

// deleteExchange makes the broker close the channel of whoever publishes a failure.
func deleteExchange(ctx context.Context, l *Load) error {
	for range l.rounds(5, 3) {
		if _, err := l.admin.DeleteExchange("/", l.config.Prefix); err != nil {
			return err
		}
		l.ledger.heal()
		sleep(ctx, time.Second)
	}
	return nil
}

// revoke takes all permissions away; an open connection has none either.
func revoke(ctx context.Context, l *Load) (err error) {
	defer func() { err = errors.Join(err, l.permit(everything)) }()
	if err := l.permit("^$"); err != nil {
		return err
	}
	sleep(ctx, l.long(3*time.Second, 2*time.Second))
	// A connection that breaks meanwhile cannot be replaced by one that may consume.
	if err := closeListed(ctx, l); err != nil {
		return err
	}
	sleep(ctx, l.long(5*time.Second, 2*time.Second))
	return nil
}

// changePassword leaves open connections alone, and lets nobody in who comes with the old one.
func changePassword(ctx context.Context, l *Load) (err error) {
	defer func() { err = errors.Join(err, l.password(l.user)) }()
	if err := l.password("another " + l.user); err != nil {
		return err
	}
	if err := closeListed(ctx, l); err != nil {
		return err
	}
	sleep(ctx, l.long(8*time.Second, 3*time.Second))
	return nil
}
