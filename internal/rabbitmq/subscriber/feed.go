package subscriber

import (
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// An arrival is a delivery on its way to a handler.
type arrival struct {
	session  *session
	era      *era
	delivery amqp091.Delivery
	msg      *message.Message // nil: not unmarshalled yet
	err      error            // of Config.Unmarshal
	key      string           // of Config.OrderKey
	left     bool             // the era
	aside    bool             // the message takes no place
}

// leave ends the arrival's part in its era.
func (a *arrival) leave() {
	if !a.left {
		a.left = true
		a.era.Leave()
	}
}

// describe identifies a delivery in a log line.
func describe(a *arrival) string {
	d := a.delivery
	return fmt.Sprintf("message id %q, exchange %q, routing key %q, %d bytes", d.MessageId, d.Exchange, d.RoutingKey,
		len(d.Body))
}

// settled is called when the delivery was acked, nacked or lost.
func (a *arrival) settled() {
	if !a.aside {
		a.era.unsettled.Add(-1)
	}
	a.session.users.Leave()
}

// A feed gives arrivals to the workers.
type feed interface {
	// next waits for an arrival. It returns false when the subscription stops.
	next(*arrival) bool
	// handled is called when an arrival of next is settled.
	handled(*arrival)
	// giveBack gives back what waits in the feed. It is called after the stop of the subscription, and when an era is
	// over.
	giveBack()
}

// arrivals gives deliveries to the workers as they come.
type arrivals struct{ *subscription }

func (f arrivals) next(a *arrival) bool {
	for {
		state := f.session.Load()
		if c := state.consumer; c != nil && c.enter() {
			var delivery amqp091.Delivery
			var open bool
			select {
			case delivery, open = <-c.deliveries:
				if !open {
					c.last.Do(func() { close(c.received) })
				}
			case <-c.era.over:
			case <-c.session.settler.over:
			}
			if open {
				c.session.count()
			}
			if open && !f.stopped() {
				f.counts.deliveries.Add(1)
				if delivery.Redelivered {
					f.counts.redeliveries.Add(1)
				}
				c.era.unsettled.Add(1)
				*a = arrival{session: c.session, era: c.era, delivery: delivery}
				return true
			}
			if open {
				c.session.nack(delivery.DeliveryTag)
			}
			c.leave()
			if open {
				continue
			}
		}
		select {
		case <-f.stopping:
			return false
		case <-state.changed:
		}
	}
}

// enter reports whether deliveries of the consumer may be received.
func (c *consumer) enter() bool {
	if !c.session.users.Enter() {
		return false
	}
	if !c.era.Enter() {
		c.session.users.Leave()
		return false
	}
	return true
}

func (c *consumer) leave() {
	c.era.Leave()
	c.session.users.Leave()
}

func (f arrivals) handled(a *arrival) { a.settled() }
func (f arrivals) giveBack()          {}

// ordered gives deliveries of one key to the workers one after the other. One goroutine receives them all, so their
// order is that of the queue.
type ordered struct {
	*subscription

	mu      sync.Mutex
	change  *sync.Cond           // ready has grown, or the subscription stops
	ready   []arrival            // for the next free worker
	waiting map[string][]arrival // by key; a key is in the map while a message with it is in ready, or a worker has it
}

func newOrdered(s *subscription) *ordered {
	o := &ordered{subscription: s, waiting: make(map[string][]arrival)}
	o.change = sync.NewCond(&o.mu)
	return o
}

// dispatch receives deliveries until the subscription stops.
func (o *ordered) dispatch() {
	source := arrivals{o.subscription}
	var a arrival
	finished := false
	defer func() {
		if !finished {
			o.workers.Go(func() {
				if a.msg == nil {
					a.err = errExited
				} else {
					o.logNoKey(&a, errExited)
				}
				o.add(a)
				o.dispatch()
			})
		}
	}()
	for source.next(&a) {
		o.unmarshal(&a)
		if a.err == nil {
			err := guard("Config.OrderKey", func() error { a.key = o.config.OrderKey(a.msg); return nil })
			if err != nil {
				o.logNoKey(&a, err)
			}
		}
		o.add(a)
	}
	finished = true
}

func (o *ordered) logNoKey(a *arrival, err error) {
	o.logger.Error("A message has no order key", err, watermill.LogFields{"message_uuid": a.msg.UUID})
}

func (o *ordered) add(a arrival) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped() || a.era.isOver() {
		o.drop(a)
		return
	}
	if a.key != "" {
		queue, busy := o.waiting[a.key]
		if busy {
			o.waiting[a.key] = append(o.dropLost(queue), a)
			return
		}
		o.waiting[a.key] = nil
	}
	o.ready = append(o.ready, a)
	o.change.Signal()
}

// dropLost drops the messages of lost channels. There can be more of them than Config.Prefetch.
func (o *ordered) dropLost(queue []arrival) []arrival {
	if len(queue) == 0 || !queue[0].session.lost() {
		return queue
	}
	return slices.DeleteFunc(queue, func(a arrival) bool {
		if a.session.lost() {
			a.era.Leave()
			a.settled()
			return true
		}
		return false
	})
}

func (o *ordered) next(a *arrival) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.ready) == 0 {
		if o.stopped() {
			return false
		}
		o.change.Wait()
	}
	*a = o.ready[0]
	o.ready[0] = arrival{}
	o.ready = o.ready[1:]
	return true
}

func (o *ordered) handled(a *arrival) {
	a.settled()
	if a.key == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	queue := o.waiting[a.key]
	if len(queue) == 0 {
		delete(o.waiting, a.key)
		return
	}
	o.ready = append(o.ready, queue[0])
	queue[0] = arrival{}
	o.waiting[a.key] = queue[1:]
	o.change.Signal()
}

func (o *ordered) drop(a arrival) {
	a.session.nack(a.delivery.DeliveryTag)
	a.era.Leave()
	a.settled()
}

func (o *ordered) giveBack() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, queue := range o.waiting {
		for _, a := range queue {
			o.drop(a)
		}
		o.waiting[key] = nil
	}
	for _, a := range o.ready {
		o.drop(a)
		delete(o.waiting, a.key)
	}
	o.ready = nil
	o.change.Broadcast()
}
