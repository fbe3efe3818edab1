package channel

import (
	"context"
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
	// AnswerTimeout is how long a shutdown waits for the broker to answer basic.cancel or channel.close.
	AnswerTimeout = 5 * time.Second

	// CloseTimeout is how long the broker may take to cancel a consumer at a pause, and to close a channel; after that
	// the channel is closed, and the connection.
	CloseTimeout = 5 * time.Minute

	MaxPrefetch    = 1<<16 - 1 // basic.qos sends it in two bytes
	MaxShortString = 255       // the length of an AMQP short string has one byte
)

// Why a session ends by itself.
var (
	ErrCancelled  = errors.New("the broker cancelled the consumer")
	errClosed     = errors.New("the channel was closed")
	errUnanswered = errors.New("the broker has not answered")
)

// A Session is one channel with one consumer.
type Session struct {
	*settler
	Consumer
	Connection *wire.Connection
	Deliveries <-chan amqp091.Delivery // closed by amqp091-go when the consumer has ended
	Users      users.Count             // deliveries that are not settled

	channel AMQP
	gone    context.Context
	leave   context.CancelCauseFunc
	closing atomic.Bool
}

// A Consumer is what a session consumes, and how.
type Consumer struct {
	Options
	Queue    string
	Prefetch int
	Moves    bool // see MovesConsumers
}

// Options has the options of basic.consume.
type Options struct {
	// Tag is the consumer's name on its channel. Each consumer has a channel of its own. At most 255 bytes. In
	// package ordered it has a number at its end. Empty: a unique one.
	Tag string

	// Exclusive asks the broker to refuse other consumers of the queue.
	Exclusive bool

	// NoLocal is sent to the broker. RabbitMQ ignores it.
	NoLocal bool

	// Arguments are the consumer's, such as x-priority. They are not modified.
	Arguments amqp091.Table
}

// AMQP is the AMQP channel of a session.
type AMQP interface {
	acknowledger
	Qos(prefetchCount, prefetchSize int, global bool) error
	Consume(
		queue, consumer string, autoAck, exclusive, noLocal, noWait bool, args amqp091.Table,
	) (<-chan amqp091.Delivery, error)
	Cancel(consumer string, noWait bool) error
	NotifyCancel(chan string) chan string
	NotifyClose(chan *amqp091.Error) chan *amqp091.Error
	Close() error
}

// New begins a consumer on a channel, which it closes where that fails. From the end of stopping on, a nack waits until
// the consumer has ended.
func New(stopping context.Context, on *wire.Connection, channel AMQP, c Consumer) (n *Session, err error) {
	n = &Session{settler: newSettler(channel, on.Socket, stopping), Consumer: c, Connection: on, channel: channel}
	n.gone, n.leave = context.WithCancelCause(n.Lost)
	cancels := channel.NotifyCancel(make(chan string, 8))
	closes := channel.NotifyClose(make(chan *amqp091.Error, 1))
	if n.Deliveries, err = n.consume(n.Tag); err != nil {
		_ = channel.Close()
		return nil, err
	}
	go n.watch(cancels, closes)
	go n.settler.run()
	return n, nil
}

func (n *Session) consume(tag string) (<-chan amqp091.Delivery, error) {
	if err := n.channel.Qos(n.Prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := n.channel.Consume(n.Queue, tag, false, n.Exclusive, n.NoLocal, false, n.Arguments)
	if err == nil && n.Moves {
		err = n.channel.Qos(MaxPrefetch, 0, true)
	}
	return deliveries, err
}

// MovesConsumers reports whether the broker may move a consumer to a new queue, in place of basic.cancel, when its
// queue is deleted and declared anew within milliseconds. It then loses what the queue delivers (seen on 3.10.8, not on
// 4.0 and 4.3). It cannot move a consumer to a quorum queue on a channel with a global prefetch, which quorum queues
// refuse, and sends basic.cancel. So that prefetch is set after basic.consume, to the highest value. From 3.12 on, an
// operator can forbid it, and the broker would close the connection.
func MovesConsumers(version string) bool {
	return strings.HasPrefix(version, "3.10.") || strings.HasPrefix(version, "3.11.")
}

var consumers atomic.Uint64

// Numbered returns a tag with a number. Several consumers of a channel need one: a quorum queue would take one with the
// same tag for the one before it, while messages of that one are not acknowledged.
func (o Options) Numbered() string {
	number := strconv.FormatUint(consumers.Add(1), 10)
	if o.Tag == "" {
		return "watermill-retry-" + number
	}
	return o.Tag[:min(len(o.Tag), MaxShortString-1-len(number))] + "-" + number
}

// watch makes the session end when the broker cancels a consumer, and when the channel is closed.
func (n *Session) watch(cancels <-chan string, closes <-chan *amqp091.Error) {
	for {
		select {
		case tag, open := <-cancels:
			if !open {
				cancels = nil
				continue
			}
			n.Leave(fmt.Errorf("%w %q", ErrCancelled, tag))
		case err := <-closes:
			if err == nil {
				n.End(errClosed)
			} else {
				n.End(err)
			}
			return
		}
	}
}

// Gone ends when no message of the session is to be handed out any more, because all are about to go back.
func (n *Session) Gone() context.Context { return n.gone }

// Leave ends a session. No message of it is handed out afterwards.
func (n *Session) Leave(reason error) { n.leave(reason) }

// Reason is why a session has ended. It has its first reason.
func (n *Session) Reason() error { return context.Cause(n.gone) }

// Fetches returns the prefetch.
func (n *Session) Fetches() int { return n.Prefetch }

// LostChannel reports whether the broker has closed the channel, and not the connection, as at the consumer timeout.
func (n *Session) LostChannel() bool {
	var answer *amqp091.Error
	return errors.As(context.Cause(n.Lost), &answer) && !wire.IsLost(answer)
}

// Cancel cancels the consumer. Afterwards, amqp091-go closes Deliveries when all of them have been received. When the
// broker does not answer in time, the channel is closed.
func (n *Session) Cancel(limit time.Duration) {
	if !n.Within(limit, func() { _ = n.channel.Cancel(n.Tag, false) }) {
		go n.Close()
		n.End(errUnanswered)
	}
}

// Within runs a function, and reports whether it has returned before the time was over, which is at most AnswerTimeout
// after the stop of the subscription, and before the session was lost.
func (n *Session) Within(limit time.Duration, f func()) bool {
	returned := make(chan struct{})
	go func() {
		f()
		close(returned)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for stopping := n.stopping.Done(); ; {
		select {
		case <-returned:
			return true
		case <-n.Lost.Done():
			return false
		case <-stopping:
			stopping = nil
			timer.Reset(min(limit, AnswerTimeout))
		case <-timer.C:
			return false
		}
	}
}

// Abandon ends a session whose messages have gone back, or from which nothing was received.
func (n *Session) Abandon() {
	n.Flush()
	n.Within(AnswerTimeout, n.Close)
}

// Close closes the channel, or waits for another call that does. The broker takes back what is not settled.
func (n *Session) Close() { n.closeAfter(func() {}) }

// CloseAcked closes the channel when its queue has all acks that were sent. A channel keeps them back while a quorum
// queue has about 32 that it has not applied, and forgets these when it is closed. A basic.consume is applied after
// what the queue has got before, and then the channel sends what it has kept back; so the basic.cancel of that consumer
// comes after everything. That consumer gets nothing where the queue has a single active consumer: it waits for the end
// of the first one. A basic.get would be refused for that reason.
func (n *Session) CloseAcked() {
	n.closeAfter(func() {
		if n.Moves && n.channel.Qos(0, 0, true) != nil {
			return
		}
		n.Tag = n.Numbered()
		if _, err := n.consume(n.Tag); err == nil {
			_ = n.channel.Cancel(n.Tag, false)
		}
	})
}

// closeAfter closes the channel after a last call. When the broker does not answer for very long, it closes the
// connection.
func (n *Session) closeAfter(last func()) {
	if n.closing.Swap(true) {
		<-n.Lost.Done()
		return
	}
	limit := time.AfterFunc(CloseTimeout, func() { _ = n.Connection.Socket.Close() })
	defer limit.Stop()
	last()
	_ = n.channel.Close()
}
