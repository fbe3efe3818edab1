package main

import (
	"context"
	"errors"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

var serverFaults = []Fault{
	{"connections-closed", 0, 10 * time.Second, closeConnections},
	{"channel-errors", 0, 6 * time.Second, deleteExchange},
	{"permissions-revoked", 0, 9 * time.Second, revoke},
	{"password-changed", 0, 9 * time.Second, changePassword},
}

// closeConnections closes the connections of the app's user, several times.
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

// openConnections is how many the app has at least: two of Connect, and those of watermill-amqp's subscriber and of
// the publisher.
const openConnections = 4

// closeListed waits until the management API lists the connections of the app, which takes some seconds, and closes
// them.
func closeListed(ctx context.Context, l *Load) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var err error // a busy broker answers 500 now and then
	for closed := 0; closed < openConnections; sleep(ctx, 100*time.Millisecond) {
		if ctx.Err() != nil {
			return errors.Join(errors.New("the management API did not list the connections of the app within 20s, "+
				"so not all were closed"), err)
		}
		var connections []rabbithole.ConnectionInfo
		if connections, err = l.admin.ListConnections(); err != nil {
			continue
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

// deleteExchange deletes the retry exchange: the broker then closes every channel that publishes a copy.
func deleteExchange(ctx context.Context, l *Load) error {
	for range l.rounds(5, 3) {
		if _, err := l.admin.DeleteExchange("/", l.config.Name); err != nil {
			return err
		}
		l.ledger.heal()
		sleep(ctx, time.Second)
	}
	return nil
}

// revoke removes all permissions, for open connections as well.
func revoke(ctx context.Context, l *Load) (err error) {
	defer func() { err = errors.Join(err, l.permit(everything)) }()
	if err := l.permit("^$"); err != nil {
		return err
	}
	sleep(ctx, l.long(3*time.Second, 2*time.Second))
	// A connection that is closed now cannot be replaced by one that is permitted to consume.
	if err := closeListed(ctx, l); err != nil {
		return err
	}
	sleep(ctx, l.long(5*time.Second, 2*time.Second))
	return nil
}

// changePassword does not affect open connections. New connections with the old password are refused.
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
