package main

import (
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

var quiet = watermill.NopLogger{}

// The app has two work queues. Connect consumes the first one, with 16 calls at the same time. The parts around
// watermill-amqp's subscriber consume the second one, with 16 handlers and one message in flight each.
const (
	connected   = 0
	stock       = 1
	workQueues  = 2
	concurrency = 16

	ordered          = 2  // the work queue of an app that keeps the order of keys, the only one of it
	orderConcurrency = 32 // how many handlers of a process run at the same time
	partitions       = 8
)

var tiers = backoff.Schedule{100 * time.Millisecond, 300 * time.Millisecond, time.Second}

var (
	errBank = errors.New("the bank is down")
	// the only error that pauses a handler: the app's own failures are too many
	errOutage = errors.New("everything is down")
)

// appConfig is the configuration of an app.
type appConfig struct {
	URL, Name string
	Consuming string // the address of the first connection; empty: that of URL
	Breaker   bool
	Ordered   bool // it keeps the order of keys
}

// queueOf is the work queue of a message.
func queueOf(identity string) int {
	n, _ := strconv.Atoi(identity)
	return n / 4 % workQueues // each queue gets messages with every number of failures
}

func (c appConfig) queue(which int) string {
	return c.Name + [...]string{".connect", ".stock", ".ordered"}[which]
}

func (c appConfig) dead(which int) string { return naming.DeadQueue(c.queue(which)) }

func (c appConfig) tier(which int, t backoff.Tier) string {
	return naming.Prefix(c.Name).TierQueue(c.queue(which), t)
}

// workQueues are the numbers of the work queues.
func (c appConfig) workQueues() []int {
	if c.Ordered {
		return []int{ordered}
	}
	return []int{connected, stock}
}

// waiting are the queues on which messages wait: work queues, and their tiers or partitions.
func (c appConfig) waiting() (all []string) {
	for _, which := range c.workQueues() {
		all = append(all, c.queue(which))
		for _, t := range tiers.Tiers() {
			all = append(all, c.tier(which, t))
		}
	}
	if c.Ordered {
		for i := range partitions {
			all = append(all, naming.PartitionQueue(c.queue(ordered), i))
		}
	}
	return all
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
