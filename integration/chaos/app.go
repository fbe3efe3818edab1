package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

const handlers = 16

var tiers = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond, time.Second}

var errBank = errors.New("the bank is down")

// appConfig is the configuration of a consumer, in this process or in a child.
type appConfig struct{ URL, Queue, Prefix string }

// report receives what happens to the messages.
type report interface {
	extra() time.Duration // additional working time of a handler
	handled(identity string)
	moved(identity, queue string, wait time.Duration, dead bool)
}

// app is a complete consumer, built like a user's.
type app struct {
	router   *message.Router
	failures *publisher.Publisher
	refused  atomic.Int64 // attempts to publish a copy that failed
	ended    chan error
}

// refusals counts the attempts to publish that fail.
type refusals struct {
	message.Publisher
	count *atomic.Int64
}

func (r refusals) Publish(topic string, messages ...*message.Message) error {
	err := r.Publisher.Publish(topic, messages...)
	if err != nil {
		r.count.Add(1)
	}
	return err
}

func (c appConfig) builder() (*config.Builder, error) {
	rabbit := amqp.NewDurableQueueConfig(c.URL)
	rabbit.Connection.AmqpConfig = &amqp091.Config{Heartbeat: 3 * time.Second}
	rabbit.Connection.Reconnect = amqp.DefaultReconnectConfig()
	rabbit.Connection.Reconnect.BackoffMaxInterval = 2 * time.Second
	return config.NewBuilder(config.BuilderConfig{AMQP: rabbit, Schedule: tiers, Prefix: c.Prefix})
}

func startApp(ctx context.Context, c appConfig, to report) (*app, error) {
	rabbit, err := c.builder()
	if err != nil {
		return nil, err
	}
	subscriber, err := amqp.NewSubscriber(rabbit.SubscriberConfig(), quiet)
	if err != nil {
		return nil, err
	}
	a := &app{ended: make(chan error, 1)}
	if a.failures, err = rabbit.NewPublisher(quiet); err != nil {
		return nil, errors.Join(err, subscriber.Close())
	}
	settings := rabbit.TieredRetryConfig(refusals{a.failures, &a.refused})
	settings.OnRetry = func(e middleware.RetryEvent) {
		to.moved(e.MessageUUID, tierQueue(c, e.Tier), time.Duration(e.Tier), false)
	}
	settings.OnDeadLetter = func(e middleware.DeadLetterEvent) { to.moved(e.MessageUUID, c.Queue+".dead", 0, true) }
	retry, err := middleware.NewTieredRetry(settings, quiet)
	if err != nil {
		return nil, errors.Join(err, subscriber.Close(), a.failures.Close())
	}
	a.router = message.NewDefaultRouter(quiet)
	for i := range handlers {
		a.router.AddConsumerHandler(fmt.Sprintf("bill/%d", i), c.Queue, subscriber, func(msg *message.Message) error {
			return bill(msg, to)
		}).AddMiddleware(retry.Middleware)
	}
	go func() { a.ended <- a.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-a.router.Running():
		return a, nil
	case err := <-a.ended:
		return nil, errors.Join(fmt.Errorf("the router ended: %w", err), subscriber.Close(), a.failures.Close())
	}
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
	record, _ := middleware.ReadRecord(msg.Metadata)
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
	return errors.Join(err, <-a.ended, a.failures.Close())
}
