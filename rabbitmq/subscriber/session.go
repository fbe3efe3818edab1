package subscriber

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

const (
	answerTimeout       = 5 * time.Second // how long a shutdown waits for the broker to answer basic.cancel or channel.close
	channelCloseTimeout = 5 * time.Minute // how long the broker may take to close a channel; after that the connection is closed
)

// A session is one channel with one consumer. It ends in one of three ways: the broker cancels the consumer, the channel is
// closed by the broker or with the connection, or the subscription stops and cancels the consumer.
type session struct {
	*settler
	connection *dial.Connection
	channel    *amqp091.Channel
	tag        string
	deliveries <-chan amqp091.Delivery // closed by amqp091-go when the consumer has ended
	cancels    chan string
	closes     chan *amqp091.Error
	closed     chan struct{} // closed when the channel is
	reason     error         // set before closed is closed

	mu      sync.Mutex
	users   int           // workers that receive from deliveries, and messages in the ordered feed
	retired bool          // no more users
	idle    chan struct{} // closed when the session is retired and has no users
}

var consumers atomic.Uint64

func openSession(current *dial.Connection, s *subscription) (*session, error) {
	channel, err := current.Channel(func(channel *amqp091.Channel) error { return channel.Qos(s.config.Prefetch, 0, false) })
	if err != nil {
		return nil, err
	}
	c := s.config.Consumer
	tag := c.Tag
	if tag == "" {
		tag = "watermill-retry-" + strconv.FormatUint(consumers.Add(1), 10)
	}
	n := &session{
		connection: current,
		channel:    channel,
		tag:        tag,
		cancels:    channel.NotifyCancel(make(chan string, 1)),
		closes:     channel.NotifyClose(make(chan *amqp091.Error, 1)),
		closed:     make(chan struct{}),
		idle:       make(chan struct{}),
	}
	n.settler = newSettler(channel, current.Socket, s.stopping)
	n.deliveries, err = channel.Consume(s.queue, tag, false, c.Exclusive, c.NoLocal, false, c.Arguments)
	if err == nil && movesConsumers(current.Version()) && s.isQuorum() {
		err = channel.Qos(maxPrefetch, 0, true)
	}
	if err != nil {
		_ = channel.Close()
		return nil, err
	}
	go n.watchClosed()
	go n.settler.run()
	return n, nil
}

// movesConsumers reports whether the broker may move a consumer to a new queue, in place of basic.cancel, when its queue is deleted and
// declared anew within milliseconds. It then loses what the queue delivers (seen on 3.10.8, not on 4.0 and 4.3). It cannot move a
// consumer to a quorum queue on a channel with a global prefetch, which quorum queues refuse, and sends basic.cancel. So that prefetch
// is set after basic.consume, to the highest value. From 3.12 on, an operator can forbid it, and the broker would close the connection.
func movesConsumers(version string) bool {
	return strings.HasPrefix(version, "3.10.") || strings.HasPrefix(version, "3.11.")
}

func (s *subscription) isQuorum() (quorum bool) {
	err := guard("Config.Quorum", func() error { quorum = s.config.Quorum(s.queue); return nil })
	return quorum && err == nil
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
func (n *session) lost() bool { return n.channel.IsClosed() }

// wait returns when the session ends, with the reason, or when stopping is closed.
func (n *session) wait(stopping <-chan struct{}) error {
	select {
	case <-n.closed:
		return n.reason
	case _, open := <-n.cancels:
		if !open {
			<-n.closed
			return n.reason
		}
		return fmt.Errorf("the broker cancelled the consumer %q", n.tag)
	case <-stopping:
		return nil
	}
}

// cancel cancels the consumer. Afterwards, amqp091-go closes n.deliveries when all of them have been received. When the broker
// does not answer in time, the channel is closed.
func (n *session) cancel() {
	answered := make(chan struct{})
	go func() {
		_ = n.channel.Cancel(n.tag, false)
		close(answered)
	}()
	limit := time.NewTimer(answerTimeout)
	defer limit.Stop()
	select {
	case <-answered:
	case <-n.closed:
	case <-limit.C:
		go n.close()
		n.settler.end()
	}
}

// retire gives back the deliveries that no worker has received, waits until all other messages of the session are settled, or
// until givenUp is closed, and closes the channel. The consumer has ended before.
func (n *session) retire(givenUp <-chan struct{}) {
	n.settler.consumerEnded()
	for open := true; open; {
		var d amqp091.Delivery
		select {
		case d, open = <-n.deliveries:
			if open {
				n.nack(d.DeliveryTag)
			}
		case <-n.settler.over:
			open = false
		}
	}
	n.mu.Lock()
	n.retired = true
	if n.users == 0 {
		close(n.idle)
	}
	n.mu.Unlock()
	select {
	case <-n.idle:
	case <-givenUp:
	case <-n.settler.over:
	}
	n.settler.flush()
	closed := make(chan struct{})
	go func() {
		n.close()
		close(closed)
	}()
	limit := time.NewTimer(answerTimeout)
	defer limit.Stop()
	select {
	case <-closed:
	case <-n.settler.over:
	case <-limit.C:
	}
}

// close closes the channel. When the broker does not answer for very long, it closes the connection.
func (n *session) close() {
	limit := time.AfterFunc(channelCloseTimeout, func() { _ = n.connection.Socket.Close() })
	defer limit.Stop()
	_ = n.channel.Close()
}

// enter reports whether the session may be used. A user calls leave.
func (n *session) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.retired {
		return false
	}
	n.users++
	return true
}

func (n *session) leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.users--
	if n.retired && n.users == 0 {
		close(n.idle)
	}
}
