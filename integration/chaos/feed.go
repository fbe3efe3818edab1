package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

// total is how many messages the row has.
func (l *Load) total() int {
	if l.config.Ordered {
		return l.Keys * l.Each
	}
	return l.Messages
}

// place is where a message is published to.
func (l *Load) place(i int) (exchange, key, identity string) {
	if !l.config.Ordered {
		identity = identityOf(i)
		return "", l.config.queue(queueOf(identity)), identity
	}
	k := i % l.Keys
	of := fmt.Sprintf("key-%d", k)
	exchange, key = "", l.config.queue(ordered)
	if k%2 == 0 { // half of the keys to the partitions, the others to the work queue
		exchange, key = naming.OrderExchange(key), fmt.Sprint(naming.PartitionOf(of, partitions))
	}
	return exchange, key, orderIdentity(of, i/l.Keys)
}

// feeders is how many publish, each one message at a time: those of one key stay in their order.
func (l *Load) feeders() int {
	if l.config.Ordered {
		return 32
	}
	return 8
}

// feed publishes the messages from..to-1 evenly over the duration, each until the broker has routed and confirmed it.
// It is connected to the broker directly, not through the proxy.
func (l *Load) feed(ctx context.Context, from, to int, over time.Duration) {
	begin, feeders := time.Now(), l.feeders()
	var running sync.WaitGroup
	for f := range feeders {
		running.Go(func() {
			var s *feedSession
			defer func() { s.close() }()
			for i := from; i < to; i++ {
				if l.config.Ordered && i%l.Keys%feeders != f || !l.config.Ordered && i%feeders != f {
					continue
				}
				if !sleep(ctx, time.Until(begin.Add(over*time.Duration(i-from)/time.Duration(to-from)))) {
					return
				}
				exchange, key, identity := l.place(i)
				msg := message.NewMessage(identity, []byte("order "+identity))
				var err error
				if s, err = l.broker.publish(ctx, s, exchange, key, msg); err != nil {
					l.fail(err)
					return
				}
				l.ledger.confirmed(identity, key)
			}
		})
	}
	running.Wait()
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

func identityOf(i int) string { return fmt.Sprintf("%05d", i) }

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
