package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// An outage is a time in which the dependency of a handler is down, while messages arrive evenly. Two apps meet it side by side, one
// with a breaker and one without.
type outage struct {
	uri      string
	messages int
	lasts    time.Duration
}

const (
	outageName     = "outage"
	outageWork     = 50 * time.Millisecond  // how long a call takes
	outageBatch    = 100 * time.Millisecond // messages are published once in this time
	outagePatience = 3 * time.Minute        // without progress for so long, messages are lost. The longest tier has 125 seconds
)

// outageBreaker has a shorter pause than the default: it is a part of the time from recovery until the backlog is done.
var outageBreaker = retry.Breaker{MaxPause: 2 * time.Second}

func outageOptions(uri string) config.BuilderConfig {
	return config.BuilderConfig{AMQP: amqp.NewDurableQueueConfig(uri), Schedule: backoff.Exponential(time.Second, 5, 4), Settings: rabbitmq.Settings{Prefix: prefix}}
}

// An outageApp is one of the two apps.
type outageApp struct {
	work     string // the work queue
	down     *atomic.Bool
	calls    atomic.Int64 // while the dependency is down
	total    atomic.Int64
	dead     atomic.Int64
	handled  []atomic.Int32 // how often each message was handled
	left     atomic.Int64   // messages that are neither handled nor dead letters
	done     chan struct{}  // closed when no message is left
	end      time.Time      // set before done is closed
	retries  *config.Connection
	stopOnce func()
}

func (o outage) start(down *atomic.Bool, breaker *retry.Breaker) (*outageApp, error) {
	a := &outageApp{
		work: fmt.Sprintf("outage-%06x", rand.N(1<<24)), down: down, handled: make([]atomic.Int32, o.messages), done: make(chan struct{}),
	}
	a.left.Store(int64(o.messages))
	var err error
	a.retries, err = config.Connect(outageOptions(o.uri), nil, middleware.HandlerOptions{
		Concurrency: workers, Breaker: breaker,
		Middleware: func(c *middleware.TieredRetryConfig) { c.Observe = a.observe },
	})
	if err != nil {
		return nil, err
	}
	router := message.NewDefaultRouter(watermill.NopLogger{})
	a.retries.AddConsumerHandler(router, outageName, a.work, a.handle)
	stop, err := run(router)
	if err != nil {
		return nil, errors.Join(err, a.retries.Close())
	}
	a.stopOnce = func() {
		stop()
		_ = a.retries.Close()
		if builder, err := config.NewBuilder(outageOptions(o.uri)); err == nil {
			remove(o.uri, builder.Topology(a.work))
		}
	}
	return a, nil
}

func (a *outageApp) handle(msg *message.Message) error {
	a.total.Add(1)
	failing := a.down.Load()
	if failing {
		a.calls.Add(1)
	}
	time.Sleep(outageWork)
	if failing {
		return errMeasured
	}
	var i int
	if _, err := fmt.Sscan(msg.UUID, &i); err != nil || i < 0 || i >= len(a.handled) {
		return backoff.Permanent(fmt.Errorf("a message with the foreign id %q was delivered", msg.UUID))
	}
	if a.handled[i].Add(1) == 1 {
		a.settled()
	}
	return nil
}

func (a *outageApp) observe(e retry.Event) {
	if e.Outcome == retry.DeadLettered {
		a.dead.Add(1)
		a.settled()
	}
}

func (a *outageApp) settled() {
	if a.left.Add(-1) == 0 {
		a.end = time.Now()
		close(a.done)
	}
}

// publish publishes messages, and waits for their confirms.
func (a *outageApp) publish(from, to int) error {
	batch := make([]*message.Message, 0, to-from)
	for i := from; i < to; i++ {
		batch = append(batch, message.NewMessage(fmt.Sprint(i), make([]byte, payloadBytes)))
	}
	return a.retries.Publisher().Publish(a.work, batch...)
}

// wait waits until no message is left, and returns how many deliveries were too many.
func (a *outageApp) wait() (duplicates int, err error) {
	for total := int64(-1); ; total = a.total.Load() {
		select {
		case <-a.done:
			for i := range a.handled {
				duplicates += max(int(a.handled[i].Load())-1, 0)
			}
			return duplicates, nil
		case <-time.After(outagePatience):
			if total == a.total.Load() {
				return 0, fmt.Errorf("lost messages: %d of %d are neither handled nor dead letters, and none was delivered within the last %v",
					a.left.Load(), len(a.handled), outagePatience)
			}
		}
	}
}

// arrive publishes the messages to all apps evenly over the time.
func (o outage) arrive(over time.Duration, apps ...*outageApp) error {
	begin := time.Now()
	for published := 0; published < o.messages; {
		due := o.messages
		if passed := time.Since(begin); passed < over {
			due = int(float64(o.messages) * float64(passed) / float64(over))
		}
		for _, a := range apps {
			if err := a.publish(published, due); err != nil {
				return err
			}
		}
		published = due
		time.Sleep(outageBatch)
	}
	return nil
}

// healthy returns how long the handlers need for as many messages without an outage.
func (o outage) healthy() (time.Duration, error) {
	r, err := libraryWith("no outage", 1, workers, outageOptions).measure(o.uri, 0, newApp(o.messages, false, outageWork))
	if err != nil {
		return 0, err
	}
	return time.Duration(float64(o.messages) / r.rate * float64(time.Second)), nil
}

func (o outage) measure() ([]string, error) {
	needed, err := o.healthy()
	if err != nil {
		return nil, err
	}
	var down atomic.Bool
	down.Store(true)
	with, err := o.start(&down, &outageBreaker)
	if err != nil {
		return nil, err
	}
	defer with.stopOnce()
	without, err := o.start(&down, nil)
	if err != nil {
		return nil, err
	}
	defer without.stopOnce()

	ends := time.Now().Add(o.lasts)
	if err := o.arrive(o.lasts, with, without); err != nil {
		return nil, err
	}
	time.Sleep(time.Until(ends))
	down.Store(false)
	up := time.Now()

	fmt.Printf("\nan outage of %v, %d messages arrive meanwhile, schedule %v, %d in flight, each call takes %v. Without an outage the handlers "+
		"need %.1f s for as many\n\n", o.lasts, o.messages, outageOptions(o.uri).Schedule, workers, outageWork, needed.Seconds())
	fmt.Printf("%-42s %14s %24s %34s\n", "side", "dead letters", "calls in the outage", "backlog done after the outage")
	for _, row := range []struct {
		name string
		app  *outageApp
	}{{"with a breaker", with}, {"without", without}} {
		duplicates, err := row.app.wait()
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", outageName, row.name, err)
		}
		fmt.Printf("%-42s %14d %24d %32.1f s\n", row.name, row.app.dead.Load(), row.app.calls.Load(), row.app.end.Sub(up).Seconds())
		if duplicates > 0 {
			fmt.Printf("%s: %d messages were handled more than once\n", row.name, duplicates)
		}
	}
	return []string{
		claim("outage_dead_letters", "", float64(with.dead.Load()), 0),
		claim("outage_calls", "", float64(with.calls.Load())/float64(without.calls.Load()), 0.01),
		claim("outage_recovery", "", with.end.Sub(up).Seconds()/needed.Seconds(), 1.2),
	}, nil
}
