package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// feed publishes identities to their work queues, each until the broker has routed and confirmed it. It is connected
// to the broker directly, not through the proxy.
type feed struct {
	broker Broker
	config appConfig
	ledger *Ledger
	fail   context.CancelCauseFunc // ends the row
	ids    chan string
	done   sync.WaitGroup
}

const feeders = 8

func newFeed(ctx context.Context, l *Load) *feed {
	f := &feed{broker: l.broker, config: l.config, ledger: l.ledger, fail: l.fail, ids: make(chan string)}
	for range feeders {
		f.done.Go(func() { f.run(ctx) })
	}
	return f
}

// publish sends the identities from..to-1 to the feeders, evenly over the duration.
func (f *feed) publish(ctx context.Context, from, to int, over time.Duration) {
	begin := time.Now()
	for i := from; i < to; i++ {
		due := begin.Add(over * time.Duration(i-from) / time.Duration(to-from))
		if !sleep(ctx, time.Until(due)) {
			return
		}
		select {
		case f.ids <- identity(i):
		case <-ctx.Done():
			return
		}
	}
}

func (f *feed) close() { close(f.ids); f.done.Wait() }

func (f *feed) run(ctx context.Context) {
	var s *feedSession
	defer func() { s.close() }()
	for id := range f.ids {
		queue := f.config.queue(queueOf(id))
		var err error
		if s, err = f.broker.publish(ctx, s, "", queue, message.NewMessage(id, []byte("order "+id))); err != nil {
			f.fail(err)
			continue
		}
		f.ledger.confirmed(id, queue)
	}
}

// routedWithin is longer than each fault. What has no queue then gets none any more.
const routedWithin = 3 * time.Minute

// publish publishes a message until the broker has routed and confirmed it. It returns the session that comes next.
func (b Broker) publish(
	ctx context.Context, s *feedSession, exchange, key string, msg *message.Message,
) (*feedSession, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, routedWithin,
		fmt.Errorf("message %s could not be published to %q for %v", msg.UUID, exchange+key, routedWithin))
	defer cancel()
	for ctx.Err() == nil {
		if s == nil {
			var err error
			if s, err = openFeed(b); err != nil {
				sleep(ctx, 300*time.Millisecond)
				continue
			}
		}
		routed, err := s.publish(ctx, exchange, key, msg)
		if err != nil {
			s.close()
			s = nil
		} else if routed {
			return s, nil
		}
		sleep(ctx, 100*time.Millisecond) // nacked, or the queue does not exist at the moment
	}
	return s, context.Cause(ctx)
}

type feedSession struct {
	connection *amqp091.Connection
	channel    *amqp091.Channel
	returns    chan amqp091.Return
}

func openFeed(b Broker) (*feedSession, error) {
	connection, err := b.dial(5 * time.Second)
	if err != nil {
		return nil, err
	}
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	return &feedSession{connection, channel, channel.NotifyReturn(make(chan amqp091.Return, 1))}, nil
}

func (s *feedSession) close() {
	if s != nil {
		_ = s.connection.CloseDeadline(time.Now().Add(2 * time.Second))
	}
}

// publish waits up to a minute: a broker with an alarm answers only when the alarm ends.
func (s *feedSession) publish(
	ctx context.Context, exchange, key string, msg *message.Message,
) (routed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	publishing, err := amqp.DefaultMarshaler{}.Marshal(msg)
	if err != nil {
		return false, err
	}
	publishing.DeliveryMode = amqp091.Persistent
	confirm, err := s.channel.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, publishing)
	if err != nil {
		return false, err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil {
		return false, err
	}
	select {
	case _, returned := <-s.returns:
		if !returned {
			return false, amqp091.ErrClosed
		}
		return false, nil
	default:
	}
	if !acked && s.channel.IsClosed() {
		return false, amqp091.ErrClosed
	}
	return acked, nil
}

func identity(i int) string { return fmt.Sprintf("%05d", i) }

// drain empties a queue and counts its messages by identity. A queue that does not exist is empty.
func drain(ctx context.Context, b Broker, queue string, into map[string]int) (int, error) {
	connection, err := b.dial(10 * time.Second)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return 0, err
	}
	n := 0
	for ctx.Err() == nil {
		d, ok, err := channel.Get(queue, true)
		if gone(err) {
			return n, nil
		}
		if err != nil || !ok {
			return n, err
		}
		id, _ := d.Headers[amqp.DefaultMessageUUIDHeaderKey].(string)
		into[id]++
		n++
	}
	return n, ctx.Err()
}

var quiet = watermill.NopLogger{}
