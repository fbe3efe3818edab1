package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/tools/claims"
)

const (
	window      = 2_000 // unconfirmed messages of a pipeline
	inFlight    = 256   // messages of the sides that have many in flight
	triesHeader = "tries"
	waiting     = work + ".waiting"
)

var payload = make([]byte, 512)

// open opens a channel on a connection of its own. Its publishes are confirmed.
func open(uri string) (channel *amqp091.Channel, end func() error, err error) {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return nil, nil, err
	}
	if channel, err = connection.Channel(); err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return nil, nil, errors.Join(err, connection.Close())
	}
	return channel, connection.Close, nil
}

// with runs a function with a channel.
func with(uri string, do func(*amqp091.Channel) error) error {
	channel, end, err := open(uri)
	if err != nil {
		return err
	}
	defer func() { _ = end() }()
	return do(channel)
}

// A pipeline publishes by hand as fast as the client can: it never waits for a single confirm.
type pipeline struct {
	channel  *amqp091.Channel
	confirms []*amqp091.DeferredConfirmation
	returned atomic.Int64
	end      func() error
}

func newPipeline(uri string) (p *pipeline, err error) {
	p = &pipeline{}
	if p.channel, p.end, err = open(uri); err != nil {
		return nil, err
	}
	returns := p.channel.NotifyReturn(make(chan amqp091.Return, 1))
	go func() {
		for range returns {
			p.returned.Add(1)
		}
	}()
	return p, nil
}

// send publishes a message, whose confirm settled waits for.
func (p *pipeline) send(exchange, key string, publishing amqp091.Publishing) (*amqp091.DeferredConfirmation, error) {
	return p.channel.PublishWithDeferredConfirm(exchange, key, true, false, publishing)
}

// settled waits until the broker has routed and confirmed a message. The return of a message comes before its confirm.
func (p *pipeline) settled(confirm *amqp091.DeferredConfirmation) error {
	select {
	case <-confirm.Done():
	case <-time.After(claims.Patience):
		return fmt.Errorf("a message was not confirmed within %v", claims.Patience)
	}
	if !confirm.Acked() {
		return errors.New("a message was nacked, or the channel is closed")
	}
	if returned := p.returned.Load(); returned > 0 {
		return fmt.Errorf("%d messages were returned", returned)
	}
	return nil
}

// publish waits only where the window is full.
func (p *pipeline) publish(exchange, key string, publishing amqp091.Publishing) error {
	confirm, err := p.send(exchange, key, publishing)
	if err != nil {
		return err
	}
	if p.confirms = append(p.confirms, confirm); len(p.confirms) < window {
		return nil
	}
	half := len(p.confirms) / 2
	err = p.wait(p.confirms[:half])
	p.confirms = append(p.confirms[:0], p.confirms[half:]...)
	return err
}

// flush waits until the broker has routed and confirmed everything.
func (p *pipeline) flush() error {
	err := p.wait(p.confirms)
	p.confirms = p.confirms[:0]
	return err
}

func (p *pipeline) wait(confirms []*amqp091.DeferredConfirmation) error {
	for _, confirm := range confirms {
		if err := p.settled(confirm); err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) close() { _ = p.end() }

// publishAll publishes the messages that of returns, and waits until all are confirmed. every is the time between two
// of them.
func publishAll(uri string, messages int, every time.Duration,
	of func(message int) (exchange, key string, p amqp091.Publishing)) error {
	p, err := newPipeline(uri)
	if err != nil {
		return err
	}
	defer p.close()
	tick := time.NewTicker(max(every, 1))
	defer tick.Stop()
	for i := range messages {
		if every > 0 {
			<-tick.C
		}
		exchange, key, publishing := of(i)
		if err := p.publish(exchange, key, publishing); err != nil {
			return err
		}
	}
	return p.flush()
}

// fill publishes messages to a queue.
func fill(uri, queue string, messages int) error {
	return publishAll(uri, messages, 0, func(i int) (string, string, amqp091.Publishing) {
		return "", queue, byHand(claims.ID(i), 0)
	})
}

// byHand is a message of an app without the library, with the counter of its attempts.
func byHand(id string, tries int32) amqp091.Publishing {
	headers := amqp091.Table{publisher.UUIDHeader: id}
	if tries > 0 {
		headers[triesHeader] = tries
	}
	return amqp091.Publishing{DeliveryMode: amqp091.Persistent, Headers: headers, Body: payload}
}

func identity(d amqp091.Delivery) string {
	id, _ := d.Headers[publisher.UUIDHeader].(string)
	return id
}

// tries is how often a message by hand has failed.
func tries(d amqp091.Delivery) int {
	failures, _ := d.Headers[triesHeader].(int32)
	return int(failures)
}

// A failure is a failed message that is published again.
type failure struct {
	delivery amqp091.Delivery
	confirm  *amqp091.DeferredConfirmation
}

// fail publishes a failed message to the queue on which it waits. Without a TTL, it waits for that of the queue.
func (p *pipeline) fail(d amqp091.Delivery, ttl time.Duration) (failure, error) {
	copied := byHand(identity(d), int32(tries(d)+1))
	if ttl > 0 {
		copied.Expiration = strconv.FormatInt(ttl.Milliseconds(), 10)
	}
	confirm, err := p.send("", waiting, copied)
	return failure{d, confirm}, err
}

// ack acks a failed message that is published again. Without it, the message is lost for the measurement, which
// reports that.
func (p *pipeline) ack(f failure) {
	if err := p.settled(f.confirm); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return
	}
	_ = f.delivery.Ack(false)
}

// consumeByHand calls handle for each delivery, one after the other in each worker. stop waits for them.
func consumeByHand(uri, queue string, workers, prefetch int, handle func(amqp091.Delivery)) (stop func(), err error) {
	channel, end, err := open(uri)
	if err != nil {
		return nil, err
	}
	if err = channel.Qos(prefetch, 0, false); err != nil {
		return nil, errors.Join(err, end())
	}
	deliveries, err := channel.Consume(queue, "bench", false, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for d := range deliveries {
				handle(d)
			}
		})
	}
	return func() {
		_ = channel.Cancel("bench", false)
		group.Wait()
		_ = end()
	}, nil
}

// declareQuorum declares a quorum queue with further arguments.
func declareQuorum(channel *amqp091.Channel, name string, arguments amqp091.Table) error {
	all := amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}
	maps.Copy(all, arguments)
	_, err := channel.QueueDeclare(name, true, false, false, false, all)
	return err
}

// tierByHand has the arguments of a tier that dead-letters to a queue through the default exchange, as a user writes
// it. Without a delay each message has a TTL of its own.
func tierByHand(delay time.Duration, work string) amqp091.Table {
	arguments := amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
	if delay > 0 {
		arguments["x-message-ttl"] = delay.Milliseconds()
	}
	return arguments
}
