package subscriber

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/users"
)

const (
	// how long a shutdown waits for the broker to answer basic.cancel or channel.close
	answerTimeout = 5 * time.Second
	// how long the broker may take to cancel a consumer at a pause, and to close a channel; after that the channel is
	// closed, and the connection
	channelCloseTimeout = 5 * time.Minute
)

// A session is one channel with one consumer. It ends when the broker cancels the consumer, when the channel is closed
// by the broker or with the connection, or when its loop retires it.
type session struct {
	*settler
	ordered
	users      users.Count // deliveries that are not settled
	connection *wire.Connection
	channel    channel
	queue      string
	tag        string                  // of the consumer
	deliveries <-chan amqp091.Delivery // closed by amqp091-go when the consumer has ended
	ended      chan struct{}           // closed when the receiver has got the last delivery
	values     context.Context         // of its messages
	prefetch   int
	arrived    atomic.Uint64 // the last delivery tag that was received
	cancels    chan string
	closes     chan *amqp091.Error
	closing    atomic.Bool
	closed     chan struct{} // closed when the channel is
	reason     error         // set before closed is closed
	leaving    chan struct{} // closed by leave: nothing of the session is handed out any more
	leaveOnce  sync.Once     // closes leaving
	rewinds    chan error    // has room for one: why the session is to end

	// Of a session without an order.
	bound int // of the calls
	aside int // messages that were set aside before it
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

func newSession(current *wire.Connection, channel *amqp091.Channel, l *loop) *session {
	return &session{
		settler:    newSettler(channel, current.Socket, l.stopping),
		connection: current,
		channel:    channel,
		queue:      l.queue,
		values:     l.values,
		cancels:    channel.NotifyCancel(make(chan string, 8)),
		closes:     channel.NotifyClose(make(chan *amqp091.Error, 1)),
		ended:      make(chan struct{}),
		closed:     make(chan struct{}),
		leaving:    make(chan struct{}),
		rewinds:    make(chan error, 1),
	}
}

// begin begins the consumer. moved is movesConsumers, for a queue that may be a quorum queue.
func (n *session) begin(tag string, prefetch int, c ConsumerConfig, moved bool) (err error) {
	n.tag, n.prefetch = tag, prefetch
	if n.deliveries, err = n.basicConsume(tag, c, moved); err != nil {
		_ = n.channel.Close()
		return err
	}
	go n.watch()
	go n.settler.run()
	return nil
}

func (n *session) basicConsume(tag string, c ConsumerConfig, moved bool) (<-chan amqp091.Delivery, error) {
	if err := n.channel.Qos(n.prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := n.channel.Consume(n.queue, tag, false, c.Exclusive, c.NoLocal, false, c.Arguments)
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

var consumers atomic.Uint64

// tag returns the tag of a consumer. Where a channel has several, each has a number: a quorum queue would take one with
// the same tag for the one before it, while messages of that one are not acknowledged.
func (c ConsumerConfig) tag(several bool) string {
	number := strconv.FormatUint(consumers.Add(1), 10)
	switch {
	case c.Tag == "":
		return "watermill-retry-" + number
	case several:
		return c.Tag[:min(len(c.Tag), maxShortString-1-len(number))] + "-" + number
	default:
		return c.Tag
	}
}

// watch closes n.closed when the channel is closed, and makes the session end when the broker cancels a consumer.
func (n *session) watch() {
	for cancels := n.cancels; ; {
		select {
		case tag, open := <-cancels:
			if !open {
				cancels = nil
				continue
			}
			n.leave(fmt.Errorf("%w %q", errCancelled, tag))
		case err := <-n.closes:
			if n.reason = errChannelClosed; err != nil {
				n.reason = err
			}
			n.settler.end()
			close(n.closed)
			return
		}
	}
}

// arrive is called for each delivery, before it is handed out.
func (n *session) arrive(tag uint64) {
	if n.whole {
		n.ages.add(tag) // before waited can see the delivery
	}
	n.arrived.Store(tag)
}

// nack requeues a delivery. A session that gives all back together ends, if it does not end already.
func (n *session) nack(tag uint64) {
	switch {
	case !n.whole:
		n.settler.nack(tag)
	case !n.gone():
		n.leave(errNacked)
	}
}

// giveBack gives back what the session has received from the broker and the receiver has not.
func (n *session) giveBack() {
	for delivery := range n.deliveries {
		n.nack(delivery.DeliveryTag)
	}
	close(n.ended)
}

// leave ends a session. No message of it is handed out afterwards.
func (n *session) leave(reason error) {
	n.stopHanding()
	select {
	case n.rewinds <- reason:
	default:
	}
}

func (n *session) stopHanding() { n.leaveOnce.Do(func() { close(n.leaving) }) }

// gone reports whether messages of a session are not to be handed out.
func (n *session) gone() bool { return n.lost() || n.leaves() }

// leaves reports whether the messages of a session are about to go back.
func (n *session) leaves() bool {
	select {
	case <-n.leaving:
		return true
	default:
		return false
	}
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

// lostChannel reports whether the broker has closed the channel, and not the connection, as at the consumer timeout.
func (n *session) lostChannel() bool {
	select {
	case <-n.closed:
		var answer *amqp091.Error
		return errors.As(n.reason, &answer) && !wire.IsLost(answer)
	default:
		return false
	}
}

// cancel cancels the consumer. Afterwards, amqp091-go closes its deliveries when all of them have been received. When
// the broker does not answer in time, which is answerTimeout after stopping is closed, the channel is closed.
func (n *session) cancel(limit time.Duration, stopping <-chan struct{}) {
	answered := make(chan struct{})
	go func() {
		_ = n.channel.Cancel(n.tag, false)
		close(answered)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-answered:
			return
		case <-n.settler.over:
			return
		case <-stopping:
			stopping = nil
			timer.Reset(answerTimeout)
		case <-timer.C:
			go n.close()
			n.settler.end()
			return
		}
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

// abandon ends a session from which nothing was received: the broker takes back what it has sent.
func (n *session) abandon() {
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
	if n.whole {
		n.awaitAcks()
	}
	_ = n.channel.Close()
}
