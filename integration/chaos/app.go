package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// The app has two work queues. Connect consumes the first one, with 16 calls at the same time. The parts around
// watermill-amqp's subscriber consume the second one, with 16 handlers and one message in flight each.
const (
	connected   = 0
	stock       = 1
	workQueues  = 2
	concurrency = 16
)

var tiers = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond, time.Second}

var (
	errBank = errors.New("the bank is down")
	// the only error that pauses a handler: the app's own failures are too many
	errOutage = errors.New("everything is down")
)

// appConfig is the configuration of a consumer, in this process or in a child.
type appConfig struct {
	URL, Name string
	Consuming string // the address of the first connection; empty: that of URL
	Breaker   bool
}

// queueOf is the work queue of a message.
func queueOf(identity string) int {
	n, _ := strconv.Atoi(identity)
	return n / 4 % workQueues // each queue gets messages with every number of failures
}

func (c appConfig) queue(which int) string {
	return c.Name + [workQueues]string{".connect", ".stock"}[which]
}

func (c appConfig) dead(which int) string { return c.queue(which) + ".dead" }

func (c appConfig) tier(which int, t backoff.Tier) string {
	return strings.Join([]string{c.queue(which), c.Name, t.String()}, ".")
}

func (c appConfig) workQueues() []string { return []string{c.queue(connected), c.queue(stock)} }

// waiting are the queues on which messages wait: work queues and tiers.
func (c appConfig) waiting() []string {
	all := c.workQueues()
	for which := range workQueues {
		for _, t := range tiers.Tiers() {
			all = append(all, c.tier(which, t))
		}
	}
	return all
}

// report receives what happens to the messages.
type report interface {
	extra() time.Duration          // additional working time of a handler
	disturb(identity string) error // makes a handler fail or hang
	handled(identity string)
	moved(identity, queue string, wait time.Duration, dead bool)
}

// app is a complete consumer, built like a user's.
type app struct {
	router  *message.Router
	closers []func() error           // what closes the parts that are used until the router is closed
	refused [workQueues]atomic.Int64 // attempts to publish a copy that failed
	health  func() retry.Health      // the health of the connection
	stop    func() error             // stops the router
}

func (c appConfig) rabbit() config.Config {
	app := amqp.NewDurableQueueConfig(c.URL)
	app.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 3 * time.Second}
	if c.Consuming != "" {
		var opened atomic.Bool
		app.Connection.AmqpConfig.Dial = func(network, address string) (net.Conn, error) {
			if !opened.Swap(true) {
				address = c.Consuming
			}
			return amqp091.DefaultDial(30*time.Second)(network, address)
		}
	}
	app.Connection.Reconnect = amqp.DefaultReconnectConfig()
	app.Connection.Reconnect.BackoffMaxInterval = 2 * time.Second
	policy := retry.Policy{Schedule: tiers}
	if c.Breaker {
		policy.Breaker = &retry.Breaker{
			Least: 4, Pause: 300 * time.Millisecond, MaxPause: time.Second,
			Failed: func(err error) bool { return errors.Is(err, errOutage) },
		}
	}
	return config.Config{AMQP: app, Policy: policy, Settings: rabbitmq.Settings{Prefix: c.Name}}
}

// moves reports the copies that the broker has confirmed, and counts those that it has not.
type moves struct {
	backend.NopObserver
	app     appConfig
	to      report
	refused *atomic.Int64
}

func (m moves) Published(p backend.Published) {
	if p.Copy && p.Result != backend.PublishConfirmed {
		m.refused.Add(1)
	}
}

func (m moves) Event(e retry.Event) {
	which := queueOf(e.MessageUUID)
	switch e.Outcome {
	case retry.Retried, retry.Snoozed:
		m.to.moved(e.MessageUUID, m.app.tier(which, e.Tier), time.Duration(e.Tier), false)
	case retry.DeadLettered:
		m.to.moved(e.MessageUUID, m.app.dead(which), 0, true)
	}
}

func startApp(c appConfig, to report) (*app, error) {
	a := &app{router: message.NewDefaultRouter(quiet)}
	handler := func(msg *message.Message) error { return bill(msg, to) }
	err := a.connect(c, handler, moves{app: c, to: to, refused: &a.refused[connected]})
	if err == nil {
		err = a.connectStock(c, handler, moves{app: c, to: to, refused: &a.refused[stock]})
	}
	if err == nil {
		a.stop, err = broker.Run(a.router)
	}
	if err != nil {
		return nil, errors.Join(err, a.rest())
	}
	return a, nil
}

func (a *app) connect(
	c appConfig, handler message.NoPublishHandlerFunc, observer retry.Observer,
) error {
	rabbit, err := config.Connect(c.rabbit(), quiet)
	if err != nil {
		return err
	}
	a.closers, a.health = append(a.closers, rabbit.Close), rabbit.Health
	rabbit.Observe(observer)
	options := retry.Options{Concurrency: concurrency}
	rabbit.AddConsumerHandler(a.router, "bill", c.queue(connected), handler, options)
	return nil
}

func (a *app) connectStock(
	c appConfig, handler message.NoPublishHandlerFunc, observer retry.Observer,
) error {
	rabbit, err := config.NewBuilder(c.rabbit())
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), quiet)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, subscriber.Close)
	rabbit.Observe(observer)
	a.closers = append(a.closers, rabbit.Close)
	tiered, err := rabbit.NewTieredRetry(quiet)
	if err != nil {
		return err
	}
	for i := range concurrency {
		name := fmt.Sprintf("bill/%d", i)
		a.router.AddConsumerHandler(name, c.queue(stock), subscriber, handler).AddMiddleware(tiered)
	}
	return nil
}

// bill fails 0 to 3 times, depending on the message's identity. One message in 50 fails permanently.
func bill(msg *message.Message, to report) error {
	n, err := strconv.Atoi(msg.UUID)
	if err != nil {
		return backoff.Permanent(err)
	}
	work := time.NewTimer(time.Duration(20+n%60)*time.Millisecond + to.extra()) // so that messages are always in flight
	defer work.Stop()
	select {
	case <-work.C:
	case <-msg.Context().Done():
		return msg.Context().Err()
	}
	if err := to.disturb(msg.UUID); err != nil {
		return err
	}
	record, _ := retry.ReadRecord(msg.Metadata)
	if n%50 == 7 {
		return backoff.Permanent(errBank)
	}
	if record.Failures < n%4 {
		return errBank
	}
	to.handled(msg.UUID)
	return nil
}

func (a *app) close() error {
	return errors.Join(a.stop(), a.rest())
}

func (a *app) rest() (err error) {
	for _, close := range a.closers {
		err = errors.Join(err, close())
	}
	return err
}
