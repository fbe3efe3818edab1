// Package channeltest has an AMQP channel whose test plays the broker.
package channeltest

import (
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A Channel keeps the account of a broker: which deliveries are outstanding, and how each was settled.
type Channel struct {
	EndTakes   time.Duration // for the end of the channel
	AckTakes   time.Duration // for each ack
	Cancels    chan string   // the broker cancels the consumer with this tag
	Deliveries chan amqp091.Delivery

	mu      sync.Mutex
	next    uint64 // the lowest tag that was not delivered
	settled map[uint64]string
	frames  []string
	fresh   []string // what the frames settled
	calls   []string
	tag     string // the tag of the last consumer
	ended   bool   // the consumer has
	closed  bool
	closes  chan *amqp091.Error
}

// New returns a channel on which so many deliveries may be settled.
func New(deliveries uint64) *Channel {
	return &Channel{next: deliveries + 1, settled: map[uint64]string{}, Deliveries: make(chan amqp091.Delivery)}
}

// Frames returns the acks and nacks that have left since it was called before.
func (c *Channel) Frames() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	frames := c.frames
	c.frames = nil
	return frames
}

// Fresh returns how each delivery was settled since it was called before, in that order. How many frames that takes
// depends on which goroutine runs first.
func (c *Channel) Fresh() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := c.fresh
	c.fresh = nil
	return fresh
}

// Settled returns how each delivery was settled.
func (c *Channel) Settled() map[uint64]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settled
}

// Calls returns what was called since it was called before, without acks and nacks.
func (c *Channel) Calls() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls = nil
	return calls
}

// IsClosed reports whether the channel is closed.
func (c *Channel) IsClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// End is the end of the channel by the broker, for a reason. Nil: there is none.
func (c *Channel) End(reason *amqp091.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	c.endConsumer()
	if reason != nil {
		c.closes <- reason
	}
	close(c.closes)
}

func (c *Channel) endConsumer() {
	if !c.ended {
		c.ended = true
		close(c.Deliveries)
	}
}

// Ack implements channel.AMQP.
func (c *Channel) Ack(tag uint64, multiple bool) error {
	time.Sleep(c.AckTakes)
	c.settle("ack", tag, multiple)
	return nil
}

// Nack implements channel.AMQP.
func (c *Channel) Nack(tag uint64, multiple, requeue bool) error {
	if !requeue {
		panic("not requeued: lost")
	}
	c.settle("nack", tag, multiple)
	return nil
}

func (c *Channel) settle(how string, tag uint64, multiple bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, frame := tag, how
	if multiple {
		first, frame = 1, how+"s"
	}
	c.frames = append(c.frames, fmt.Sprint(frame, " ", tag))
	count := 0
	for i := first; i <= tag; i++ {
		if c.settled[i] == "" {
			c.settled[i] = how
			c.fresh = append(c.fresh, fmt.Sprint(how, " ", i))
			count++
		}
	}
	if tag >= c.next || count == 0 {
		panic(fmt.Sprintf("406 unknown delivery tag %d", tag)) // the broker closes the channel
	}
}

func (c *Channel) called(format string, args ...any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return amqp091.ErrClosed
	}
	c.calls = append(c.calls, fmt.Sprintf(format, args...))
	return nil
}

// Qos implements channel.AMQP.
func (c *Channel) Qos(count, _ int, _ bool) error { return c.called("qos %d", count) }

// Consume implements channel.AMQP.
func (c *Channel) Consume(queue, tag string, _, _, _, _ bool, _ amqp091.Table) (<-chan amqp091.Delivery, error) {
	c.tag = tag
	return c.Deliveries, c.called("consume %s", queue)
}

// Cancel implements channel.AMQP. It cancels the last consumer.
func (c *Channel) Cancel(tag string, noWait bool) error {
	if tag != c.tag || noWait {
		panic("another consumer is cancelled, or the answer is not waited for")
	}
	err := c.called("cancel")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endConsumer()
	return err
}

// NotifyCancel implements channel.AMQP.
func (c *Channel) NotifyCancel(to chan string) chan string {
	c.Cancels = to
	return to
}

// NotifyClose implements channel.AMQP.
func (c *Channel) NotifyClose(to chan *amqp091.Error) chan *amqp091.Error {
	c.closes = to
	return to
}

// Close implements channel.AMQP.
func (c *Channel) Close() error {
	time.Sleep(c.EndTakes)
	c.End(nil)
	return nil
}
