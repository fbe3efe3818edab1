package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// The apps that every fault disturbs.
const (
	appConnect = "connect"        // config.Connect: one handler with 16 messages in flight
	appStock   = "watermill-amqp" // the parts, with watermill-amqp's subscriber: 16 handlers with one message in flight each
)

// Apps returns the names of the apps. They run side by side, each with a broker user, queues, a feed and a ledger of its own.
func Apps() []string { return []string{appConnect, appStock} }

const concurrency = 16

var tiers = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond, time.Second}

var (
	errBank   = errors.New("the bank is down")
	errOutage = errors.New("everything is down") // the only error that pauses a handler: the app's own failures are too many
)

// appConfig is the configuration of a consumer, in this process or in a child.
type appConfig struct {
	App, URL, Queue, Prefix string
	Breaker                 bool
}

// report receives what happens to the messages.
type report interface {
	extra() time.Duration // additional working time of a handler
	disturb() error       // makes a handler fail or hang
	handled(identity string)
	moved(identity, queue string, wait time.Duration, dead bool)
}

// app is a complete consumer, built like a user's.
type app struct {
	router  *message.Router
	rest    func() error // closes what is used until the router is closed
	refused refusals
	ended   chan error
}

// refusals is a logger that counts the attempts to publish a copy that fail, and logs nothing. Error is for a message that is held, Info
// for one that another tier gets.
type refusals struct {
	watermill.NopLogger
	count atomic.Int64
}

func (r *refusals) Error(text string, _ error, _ watermill.LogFields) {
	if strings.HasPrefix(text, "Cannot publish the copy") {
		r.count.Add(1)
	}
}

func (r *refusals) Info(text string, _ watermill.LogFields) {
	if strings.HasPrefix(text, "A tier did not take the copy") {
		r.count.Add(1)
	}
}

func (r *refusals) With(watermill.LogFields) watermill.LoggerAdapter { return r }

func (c appConfig) rabbit() config.BuilderConfig {
	rabbit := amqp.NewDurableQueueConfig(c.URL)
	rabbit.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 3 * time.Second}
	rabbit.Connection.Reconnect = amqp.DefaultReconnectConfig()
	rabbit.Connection.Reconnect.BackoffMaxInterval = 2 * time.Second
	return config.BuilderConfig{AMQP: rabbit, Schedule: tiers, Settings: rabbitmq.Settings{Prefix: c.Prefix}}
}

// observe lets the middleware report the copies that the broker has confirmed.
func (c appConfig) observe(to report) func(*middleware.TieredRetryConfig) {
	return func(settings *middleware.TieredRetryConfig) {
		if c.Breaker {
			settings.Breaker = &retry.Breaker{
				Least: 4, Pause: 300 * time.Millisecond, MaxPause: time.Second, Failed: func(err error) bool { return errors.Is(err, errOutage) },
			}
		}
		settings.Observe = func(e retry.Event) {
			switch e.Outcome {
			case retry.Retried, retry.Snoozed:
				to.moved(e.MessageUUID, tierQueue(c, e.Tier), time.Duration(e.Tier), false)
			case retry.DeadLettered:
				to.moved(e.MessageUUID, c.Queue+".dead", 0, true)
			}
		}
	}
}

func startApp(ctx context.Context, c appConfig, to report) (*app, error) {
	a := &app{router: message.NewDefaultRouter(quiet), ended: make(chan error, 1)}
	add := a.addStock
	if c.App == appConnect {
		add = a.addConnect
	}
	if err := add(c, func(msg *message.Message) error { return bill(msg, to) }, c.observe(to)); err != nil {
		return nil, err
	}
	go func() { a.ended <- a.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-a.router.Running():
		return a, nil
	case err := <-a.ended:
		return nil, errors.Join(fmt.Errorf("the router ended: %w", err), a.rest())
	}
}

func (a *app) addConnect(c appConfig, handler message.NoPublishHandlerFunc, observe func(*middleware.TieredRetryConfig)) error {
	rabbit, err := config.Connect(c.rabbit(), &a.refused)
	if err != nil {
		return err
	}
	a.rest = rabbit.Close
	rabbit.AddConsumerHandler(a.router, "bill", c.Queue, handler, middleware.HandlerOptions{Concurrency: concurrency, Middleware: observe})
	return nil
}

func (a *app) addStock(c appConfig, handler message.NoPublishHandlerFunc, observe func(*middleware.TieredRetryConfig)) error {
	rabbit, err := config.NewBuilder(c.rabbit())
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), quiet)
	if err != nil {
		return err
	}
	failures, err := rabbit.NewPublisher(quiet)
	if err != nil {
		return errors.Join(err, subscriber.Close())
	}
	settings := rabbit.TieredRetryConfig(failures)
	observe(&settings)
	tiered, err := middleware.NewTieredRetry(settings, &a.refused)
	if err != nil {
		return errors.Join(err, subscriber.Close(), failures.Close())
	}
	a.rest = func() error { return errors.Join(subscriber.Close(), failures.Close()) }
	for i := range concurrency {
		a.router.AddConsumerHandler(fmt.Sprintf("bill/%d", i), c.Queue, subscriber, handler).AddMiddleware(tiered.Middleware)
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
	if err := to.disturb(); err != nil {
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

func tierQueue(c appConfig, t backoff.Tier) string {
	return strings.Join([]string{c.Queue, c.Prefix, t.String()}, ".")
}

func (c appConfig) tierQueues() []string {
	var all []string
	for _, t := range tiers.Tiers() {
		all = append(all, tierQueue(c, t))
	}
	return all
}

func (a *app) close() error {
	err := a.router.Close()
	return errors.Join(err, <-a.ended, a.rest())
}
