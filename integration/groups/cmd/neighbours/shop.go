package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

const tier = 5 * time.Second

var errMeasured = errors.New("the bank is down")

// A shop is a group of work queues. Its names are its own.
type shop struct {
	name string
	own  bool // each work queue has tiers of its own
	mu   sync.Mutex
	seen map[string]*story // by identity
	move time.Time         // when a message was handled last
}

// A story is what has become of a message.
type story struct {
	queue   string
	fails   bool      // it fails in a handler, and is not published to the tier at once
	due     time.Time // when it may come back; zero: it has not failed
	back    time.Time // when it came back; zero: it has not
	handled int       // how often it was handled without an error
}

func newShop() *shop {
	return &shop{name: fmt.Sprintf("neighbours-%06x", rand.N(1<<24)), seen: map[string]*story{}, move: time.Now()}
}

func (s *shop) queue(base string) string { return s.name + "-" + base }

// config declares work queues with these arguments.
func (s *shop) config(uri string, arguments amqp091.Table) config.BuilderConfig {
	app := amqp.NewDurableQueueConfig(uri)
	app.Queue.Arguments = arguments
	app.Connection.Reconnect = amqp.DefaultReconnectConfig()
	app.Connection.Reconnect.BackoffMaxInterval = time.Second
	b := config.BuilderConfig{
		AMQP: app, Settings: rabbitmq.Settings{Prefix: s.name}, TierGroup: s.name, Schedule: backoff.Constant(tier, 1), ExtraTiers: []time.Duration{},
	}
	if s.own {
		b.TierGroup = ""
	}
	return b
}

// consume starts an app that consumes work queues, which exist or are declared with these arguments. Each message fails once.
func (s *shop) consume(uri string, arguments amqp091.Table, queues ...string) (*config.Connection, func(), error) {
	rabbit, err := config.Connect(s.config(uri, arguments), nil, middleware.HandlerOptions{CloseTimeout: 5 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	for _, queue := range queues {
		rabbit.AddConsumerHandler(router, queue, queue, func(msg *message.Message) error { return s.handle(queue, msg) })
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return nil, nil, errors.Join(err, rabbit.Close())
	}
	return rabbit, func() { _ = router.Close(); <-ended; _ = rabbit.Close() }, nil
}

func (s *shop) handle(queue string, msg *message.Message) error {
	now := time.Now()
	record, _ := retry.ReadRecord(msg.Metadata)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.move = now
	m := s.seen[msg.UUID]
	if m == nil || m.queue != queue {
		return backoff.Permanent(fmt.Errorf("message %s is not one of queue %s", msg.UUID, queue))
	}
	if record.Failures == 0 && (m.due.IsZero() || m.fails) { // again, where its copy was not published
		m.fails = true
		m.due = time.Now().Add(tier)
		return errMeasured
	}
	if m.back.IsZero() {
		m.back = now
	}
	m.handled++
	return nil
}

// expect makes a message known before it is published. due is when it may come back, if it does not have to fail first.
func (s *shop) expect(id, queue string, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[id] = &story{queue: queue, due: due}
}

// forget is for messages that could not be published.
func (s *shop) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, id)
}

// wait waits until the messages of the chosen queues have come back, or none has moved for a time. It returns their lateness, and how
// many are missing and came twice.
func (s *shop) wait(patience time.Duration, chosen func(queue string) bool) (lateness []time.Duration, lost, twice int) {
	for {
		s.mu.Lock()
		lateness, lost, twice = nil, 0, 0
		for _, m := range s.seen {
			switch {
			case !chosen(m.queue):
			case m.handled == 0:
				lost++
			default:
				lateness = append(lateness, m.back.Sub(m.due))
				if m.handled > 1 {
					twice++
				}
			}
		}
		quiet := time.Since(s.move)
		s.mu.Unlock()
		if lost == 0 || quiet > patience {
			return lateness, lost, twice
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// remove deletes everything whose name belongs to the shop.
func (s *shop) remove(uri string, queues ...string) {
	_ = with(uri, func(channel *amqp091.Channel) error {
		for _, queue := range queues {
			builder, err := config.NewBuilder(s.config(uri, amqp091.Table{"x-queue-type": "classic"}))
			if err != nil {
				return err
			}
			t := builder.Topology(queue)
			for _, q := range append([]topology.Queue{t.WorkQueue}, t.Queues...) {
				_, _ = channel.QueueDelete(q.Name, false, false, false)
			}
			for _, e := range t.Exchanges {
				_ = channel.ExchangeDelete(e.Name, false, false)
			}
		}
		return nil
	})
}

// with runs a function with a channel of a connection of its own, whose publishes are confirmed.
func with(uri string, do func(*amqp091.Channel) error) error {
	connection, err := amqp091.Dial(uri)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	return do(channel)
}

// isGood reports whether a work queue takes its messages.
func isGood(queue string) bool { return strings.Contains(queue, "-good") }
func isBad(queue string) bool  { return !isGood(queue) }
