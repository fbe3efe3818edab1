package subscriber

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/users"
)

const (
	// how long a shutdown waits for the broker to answer basic.cancel or channel.close
	answerTimeout = 5 * time.Second
	// how long the broker may take to close a channel; after that the connection is closed
	channelCloseTimeout = 5 * time.Minute
)

var errCancelled = errors.New("the broker cancelled the consumer")

// A session is one channel with one consumer at a time, or none while the subscription is paused. It ends in one of
// three ways: the broker cancels the consumer, the channel is closed by the broker or with the connection, or the
// subscription stops and cancels the consumer.
type session struct {
	*settler
	ordered
	users      users.Count // deliveries that are not settled
	connection *wire.Connection
	channel    channel
	consumer   atomic.Pointer[consumer] // nil: there is none
	arrived    atomic.Uint64            // the last delivery tag that was received
	cancels    chan string
	closes     chan *amqp091.Error
	closing    atomic.Bool
	closed     chan struct{} // closed when the channel is
	reason     error         // set before closed is closed

	// Only one goroutine at a time uses the following: that of run, or the one of follow for which it waits.
	before     *consumer  // the last one that has ended; nil: none has
	unconsumed time.Time  // since when there was no consumer before the present one; zero: it is the first
	again      bool       // a consumer of the queue had ended before on the connection
	bound      bool       // bind has bound the queue since the last pause
	bindResult chan error // receives the result of bind; nil: it was not called
}

// A channel is the AMQP channel of a session.
type channel interface {
	Qos(prefetchCount, prefetchSize int, global bool) error
	Consume(
		queue, consumer string, autoAck, exclusive, noLocal, noWait bool, args amqp091.Table,
	) (<-chan amqp091.Delivery, error)
	Cancel(consumer string, noWait bool) error
	Close() error
}

// A consumer is what one basic.consume has begun.
type consumer struct {
	session    *session
	tag        string
	deliveries <-chan amqp091.Delivery // closed by amqp091-go when the consumer has ended
	ended      chan struct{}           // closed when the receiver has got the last delivery
	bound      int                     // of the calls
	prefetch   int
	aside      int // messages that were set aside before it
}

var consumers atomic.Uint64

func newSession(current *wire.Connection, channel *amqp091.Channel, s *subscription) *session {
	return &session{
		settler:    newSettler(channel, current.Socket, s.stopping),
		connection: current,
		channel:    channel,
		cancels:    channel.NotifyCancel(make(chan string, 8)),
		closes:     channel.NotifyClose(make(chan *amqp091.Error, 1)),
		closed:     make(chan struct{}),
	}
}

func openSession(current *wire.Connection, s *subscription) (*session, error) {
	channel, err := current.OpenChannel()
	if err != nil {
		return nil, err
	}
	n := newSession(current, channel, s)
	if s.limited() == 0 {
		n.unconsumed = time.Now()
		n.settler.consumerEnded()
		if err := channel.Qos(1, 0, false); err != nil { // by its prefetch an operator sees a handler that is paused
			_ = channel.Close()
			return nil, err
		}
	} else if err := n.consume(s); err != nil {
		_ = channel.Close()
		return nil, err
	}
	go n.watchClosed()
	go n.settler.run()
	return n, nil
}

// nack requeues a delivery. A session of a partition gives all back together, when its channel is closed.
func (n *session) nack(tag uint64) {
	if n.partition == nil {
		n.settler.nack(tag)
	}
}

// tag returns the tag of a consumer. The first one of a channel has Tag. A quorum queue would take another one with the
// same tag for the one before it, while messages of that one are not acknowledged.
func (c ConsumerConfig) tag(again bool) string {
	number := strconv.FormatUint(consumers.Add(1), 10)
	switch {
	case c.Tag == "":
		return "watermill-retry-" + number
	case again:
		return c.Tag[:min(len(c.Tag), maxShortString-1-len(number))] + "-" + number
	default:
		return c.Tag
	}
}

// consume begins a consumer, unless the subscription is paused. The receiver gets nothing of it before receive.
func (n *session) consume(s *subscription) error {
	bound, prefetch := s.fetch()
	if bound == 0 {
		return nil
	}
	moved := movesConsumers(n.connection.Version()) && s.subscriber.handler.MayBeQuorum(s.queue)
	if moved && n.before != nil { // which has set it on this channel
		if err := n.channel.Qos(0, 0, true); err != nil {
			return err
		}
	}
	tag := s.config.Consumer.tag(n.before != nil)
	n.settler.consumerBegins()
	deliveries, err := n.basicConsume(s.queue, tag, prefetch, s.config.Consumer, moved)
	if err != nil {
		return err
	}
	begun := &consumer{
		session: n, tag: tag, deliveries: deliveries, ended: make(chan struct{}), bound: bound, prefetch: prefetch,
		aside: s.places.Aside(),
	}
	n.consumer.Store(begun)
	return nil
}

// receive makes the receiver receive from the consumer of a session.
func (s *subscription) receive(n *session) {
	if c := n.consumer.Load(); c != nil {
		s.receiver.ask(func() { s.receiver.begin(c) })
	}
}

// basicConsume begins a consumer. moved is movesConsumers, for a queue that may be a quorum queue.
func (n *session) basicConsume(
	queue, tag string, prefetch int, c ConsumerConfig, moved bool,
) (<-chan amqp091.Delivery, error) {
	if err := n.channel.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := n.channel.Consume(queue, tag, false, c.Exclusive, c.NoLocal, false, c.Arguments)
	if err == nil && moved {
		err = n.channel.Qos(maxPrefetch, 0, true)
	}
	return deliveries, err
}

// movesConsumers reports whether the broker may move a consumer to a new queue, in place of basic.cancel, when its
// queue is deleted and declared anew within milliseconds. It then loses what the queue delivers (seen on 3.10.8, not on
// 4.0 and 4.3). It cannot move a consumer to a quorum queue on a channel with a global prefetch, which quorum queues
// refuse, and sends basic.cancel. So that prefetch is set after basic.consume, to the highest value. From 3.12 on, an
// operator can forbid it, and the broker would close the connection.
func movesConsumers(version string) bool {
	return strings.HasPrefix(version, "3.10.") || strings.HasPrefix(version, "3.11.")
}

var errChannelClosed = errors.New("the channel was closed")

// watchClosed closes n.closed when the channel is closed.
func (n *session) watchClosed() {
	if err := <-n.closes; err != nil {
		n.reason = err
	} else {
		n.reason = errChannelClosed
	}
	n.settler.end()
	close(n.closed)
}

// lost reports whether messages of the session cannot be settled any more.
func (n *session) lost() bool {
	select {
	case <-n.settler.over:
		return true
	default:
		return false
	}
}

// wait returns the reason when the session ends, or is to end because its queue cannot be bound, and nil when stopping
// is closed or changes receives. The broker may have cancelled a consumer while it was ended, before the present one:
// that ends nothing.
func (n *session) wait(stopping, changes <-chan struct{}) error {
	for {
		select {
		case <-n.closed:
			return n.reason
		case tag, open := <-n.cancels:
			if !open {
				<-n.closed
				return n.reason
			}
			if c := n.consumer.Load(); c == nil || c.tag == tag {
				return fmt.Errorf("%w %q", errCancelled, tag)
			}
		case err := <-n.bindResult:
			if err != nil && !n.lost() {
				return err
			}
		case <-stopping:
			return nil
		case <-changes:
			return nil
		}
	}
}

// cancel cancels the consumer. Afterwards, amqp091-go closes its deliveries when all of them have been received. When
// the broker does not answer in time, the channel is closed.
func (n *session) cancel(patience time.Duration) {
	c := n.consumer.Load()
	if c == nil {
		return
	}
	if !n.within(patience, func() { _ = n.channel.Cancel(c.tag, false) }) && !n.lost() {
		go n.close()
		n.settler.end()
	}
}

// within runs a function, and reports whether it has returned before the time was over and before the session was lost.
func (n *session) within(limit time.Duration, f func()) bool {
	returned := make(chan struct{})
	go func() {
		f()
		close(returned)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-returned:
		return true
	case <-n.settler.over:
	case <-timer.C:
	}
	return false
}

// retire gives back the backlog of a session whose consumer has ended, waits until its other messages are settled, or
// until givenUp is closed, and closes the channel.
func (s *subscription) retire(n *session) {
	if c := n.consumer.Load(); c != nil {
		s.received(c)
	}
	s.giveBack(n)
	n.settler.consumerEnded()
	select {
	case <-n.users.Close():
	case <-s.givenUp:
	case <-s.receiver.over:
	case <-n.settler.over:
	}
	n.settler.flush()
	n.within(answerTimeout, n.close)
}

// close closes the channel, or waits for another call that does. When the broker does not answer for very long, it
// closes the connection.
func (n *session) close() {
	if n.closing.Swap(true) {
		<-n.closed
		return
	}
	limit := time.AfterFunc(channelCloseTimeout, func() { _ = n.connection.Socket.Close() })
	defer limit.Stop()
	if n.partition != nil {
		n.awaitAcks()
	}
	_ = n.channel.Close()
}
