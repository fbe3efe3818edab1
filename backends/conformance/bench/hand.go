package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	group    = "billing"
	inFlight = 16
	batch    = 256                   // messages that a mover moves at once
	poll     = 20 * time.Millisecond // how long a mover waits where nothing is due
)

// A backend is what is measured on one server.
type backend struct {
	name string // in package registry

	// prepare creates the topic. It is nil where the first publisher does.
	prepare func(address, topic string) error

	// open is the app by hand.
	open func(address, topic string) (app, error)
}

var backends = []backend{redisBackend, natsBackend, postgresBackend, kafkaBackend}

// An app by hand has Watermill's own Pub/Sub, and no other package of this repository. It stores a message that has
// failed with the time at which it is due, and then acks it. What is due it publishes to the topic of the app again. So
// other consumer groups of the topic get the message again, too. It has no dead letters, no failure record but a count,
// and no end of the retries. A Publish that fails is a nack, at once.
type app interface {
	// subscribers are as many as the server needs for 16 messages in flight.
	subscribers() ([]message.Subscriber, error)

	// wait stores a message that waits.
	wait(msg *message.Message, due time.Time) error

	// move publishes what is due, until the end of ctx. It is called once.
	move(ctx context.Context) error

	// Close comes when the subscribers are closed.
	io.Closer
}

const failuresKey = "failures"

// addHand is an app by hand.
func addHand(b backend, server string, router *message.Router, l *claims.Ledger) (io.Closer, error) {
	a, err := b.open(server, topic)
	if err != nil {
		return nil, err
	}
	all, err := a.subscribers()
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	handle := func(msg *message.Message) error {
		failures, _ := strconv.Atoi(msg.Metadata.Get(failuresKey))
		if !l.Handle(msg.UUID, failures) {
			return nil
		}
		failed := msg.Copy()
		failed.Metadata.Set(failuresKey, strconv.Itoa(failures+1))
		return a.wait(failed, time.Now().Add(tier))
	}
	for i, subscriber := range all {
		router.AddConsumerHandler(fmt.Sprintf("billing-%d", i), topic, subscriber, handle)
	}
	ctx, end := context.WithCancel(context.Background())
	m := &moving{app: a, end: end}
	m.group.Go(func() {
		if err := a.move(ctx); err != nil && ctx.Err() == nil {
			m.fault = err
		}
	})
	return m, nil
}

// moving is an app by hand that moves what is due.
type moving struct {
	app
	end   context.CancelFunc
	group sync.WaitGroup
	fault error
}

func (m *moving) Close() error {
	m.end()
	m.group.Wait()
	return errors.Join(m.fault, m.app.Close())
}

// polls calls move again at once where it has moved a whole batch.
func polls(ctx context.Context, move func(context.Context) (int, error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		moved, err := move(ctx)
		if err != nil {
			return err
		}
		if moved == batch {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
