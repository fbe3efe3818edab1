package main

import (
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
)

const triesHeader = "tries"

// handWaiting is a consumer by hand: workers that publish a failed message again, wait for the confirm, and ack.
var handWaiting = side{
	name: "amqp091-go, 16 workers wait", queues: byHand, declare: declareQueues,
	consume: func(uri, work string, a *app) (func(), error) {
		h, err := newHand(uri, work, workers)
		if err != nil {
			return nil, err
		}
		for range workers {
			h.group.Go(func() {
				for d := range h.deliveries {
					if a.handle(identity(d)) != nil {
						again, err := h.again(d)
						if err == nil {
							err = again.routed(h)
						}
						if err != nil {
							a.report(err)
							return
						}
					}
					_ = d.Ack(false)
				}
			})
		}
		return h.close, nil
	},
}

// handPipelined never waits for a single confirm: a second goroutine acks what is confirmed. It is the limit of this client.
var handPipelined = side{
	name: "amqp091-go, pipelined", queues: byHand, declare: declareQueues,
	consume: func(uri, work string, a *app) (func(), error) {
		h, err := newHand(uri, work, inFlight)
		if err != nil {
			return nil, err
		}
		published := make(chan copied, inFlight)
		h.group.Go(func() {
			defer close(published)
			for d := range h.deliveries {
				if a.handle(identity(d)) == nil {
					_ = d.Ack(false)
					continue
				}
				again, err := h.again(d)
				if err != nil {
					a.report(err)
					return
				}
				published <- again
			}
		})
		h.group.Go(func() {
			for again := range published {
				if err := again.routed(h); err != nil {
					a.report(err)
					return
				}
				_ = again.delivery.Ack(false)
			}
		})
		return h.close, nil
	},
}

// handConsumer only consumes and acks. Each message in flight has a goroutine, as a handler that takes time needs.
var handConsumer = side{
	name: "amqp091-go, 256 in flight", queues: byHand, declare: declareQueues,
	consume: func(uri, work string, a *app) (func(), error) {
		h, err := newHand(uri, work, inFlight)
		if err != nil {
			return nil, err
		}
		for range inFlight {
			h.group.Go(func() {
				for d := range h.deliveries {
					if err := a.handle(identity(d)); err != nil {
						a.report(err)
						return
					}
					_ = d.Ack(false)
				}
			})
		}
		return h.close, nil
	},
}

func identity(d amqp091.Delivery) string {
	id, _ := d.Headers[publisher.UUIDHeader].(string)
	return id
}

// A hand is what a user writes by hand: a connection that consumes, one that publishes, confirms matched with returns.
type hand struct {
	work        string
	connections []*amqp091.Connection
	deliveries  <-chan amqp091.Delivery
	group       sync.WaitGroup
	publishing  *amqp091.Channel
	stop        func() error

	mu       sync.Mutex
	returns  chan amqp091.Return
	returned map[string]bool
}

func newHand(uri, work string, prefetch int) (*hand, error) {
	h := &hand{work: work, returned: map[string]bool{}}
	channels := make([]*amqp091.Channel, 2)
	for i := range channels {
		connection, err := amqp091.Dial(uri)
		if err != nil {
			return nil, err
		}
		h.connections = append(h.connections, connection)
		if channels[i], err = connection.Channel(); err != nil {
			return nil, err
		}
	}
	consuming := channels[0]
	h.publishing = channels[1]
	if err := h.publishing.Confirm(false); err != nil {
		return nil, err
	}
	h.returns = h.publishing.NotifyReturn(make(chan amqp091.Return, prefetch))
	if err := consuming.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	var err error
	h.deliveries, err = consuming.Consume(work, "measured", false, false, false, false, nil)
	h.stop = func() error { return consuming.Cancel("measured", false) }
	return h, err
}

func (h *hand) close() {
	_ = h.stop()
	h.group.Wait()
	for _, connection := range h.connections {
		_ = connection.Close()
	}
}

// A copied is a failed message that is published again.
type copied struct {
	delivery amqp091.Delivery
	confirm  *amqp091.DeferredConfirmation
}

// again publishes a failed message to the queue on which it waits, or to the dead letters.
func (h *hand) again(d amqp091.Delivery) (copied, error) {
	failures, _ := d.Headers[triesHeader].(int32)
	failures++
	queue := waiting(h.work)
	if failures == tries {
		queue = h.work + deadSuffix
	}
	confirm, err := h.publishing.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, Body: d.Body,
		Headers: amqp091.Table{publisher.UUIDHeader: identity(d), triesHeader: failures},
	})
	return copied{d, confirm}, err
}

// routed waits until the broker has routed and confirmed the message. The return of a message comes before its confirm.
func (c copied) routed(h *hand) error {
	if !c.confirm.Wait() {
		return fmt.Errorf("message %s was nacked", identity(c.delivery))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for more := true; more; {
		select {
		case r := <-h.returns:
			id, _ := r.Headers[publisher.UUIDHeader].(string)
			h.returned[id] = true
		default:
			more = false
		}
	}
	if id := identity(c.delivery); h.returned[id] {
		return fmt.Errorf("message %s was returned", id)
	}
	return nil
}
