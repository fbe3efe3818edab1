package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/middleware"
)

// mixed are the delays of the messages, in turn. The short ones are for a run that means nothing.
var (
	mixed      = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second}
	mixedShort = []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}
)

const (
	latenessWork = "orders"
	latenessRate = 400 // messages a second: few enough that they wait only on the tiers
)

var errMeasured = errors.New("measured")

type latenessResult struct {
	broker, side string
	sorted       []float64 // ms
}

// A lateApp fails for each message once, and measures the time until its next call.
type lateApp struct {
	delays []time.Duration
	mu     sync.Mutex
	failed map[int]time.Time
	late   []float64 // ms
	early  int
	twice  int
	fault  error
	left   map[int]bool
	done   chan struct{}
}

func newLateApp(messages int, delays []time.Duration) *lateApp {
	a := &lateApp{delays: delays, failed: map[int]time.Time{}, left: map[int]bool{}, done: make(chan struct{})}
	for i := range messages {
		a.left[i] = true
	}
	return a
}

func (a *lateApp) delay(message int) time.Duration { return a.delays[message%len(a.delays)] }

// handle returns the delay that a message has to wait, 0 when it is finished.
func (a *lateApp) handle(id string) time.Duration {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	i, err := messageOf(id)
	if err != nil || i < 0 {
		a.fault = errors.Join(a.fault, err)
		return 0
	}
	delay := a.delay(i)
	failed, again := a.failed[i]
	switch {
	case !again:
		a.failed[i] = time.Now()
		return delay
	case !a.left[i]:
		a.twice++
		return 0
	}
	waited := now.Sub(failed)
	if waited < broker.Least(delay) {
		a.early++
	}
	a.late = append(a.late, float64((waited-delay).Microseconds())/1000)
	delete(a.left, i)
	if len(a.left) == 0 {
		close(a.done)
	}
	return 0
}

// wait waits for all messages, and returns how late they were.
func (a *lateApp) wait() ([]float64, error) {
	select {
	case <-a.done:
	case <-time.After(slices.Max(a.delays) + patience):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.left) > 0 || a.early > 0 || a.fault != nil {
		return nil, errors.Join(a.fault, fmt.Errorf("lost=%d early=%d of %d messages", len(a.left), a.early, len(a.left)+len(a.late)))
	}
	slices.Sort(a.late)
	return a.late, nil
}

// A lateSide is one way to delay messages. work names the queue of a message.
type lateSide struct {
	name    string
	recipe  bool
	work    func(message int) string
	consume func(uri string, a *lateApp) (stop func(), err error)
}

func oneQueue(int) string { return latenessWork }

// lateSides are the ways to wait. A ladder has no tier of 10 s: a message waits on two of its tiers, one after the other.
func lateSides(s *server, delays []time.Duration, native bool) []lateSide {
	sides := []lateSide{{name: "per-message TTL", recipe: true, work: oneQueue, consume: consumeRecipe}}
	for _, l := range layouts {
		sides = append(sides, lateSide{name: "tiers " + l.name, work: oneQueue, consume: consumeTiers(l, delays)})
	}
	sides = append(sides, lateSide{name: "ladder", work: oneQueue, consume: consumeTiers(ladder, nil)})
	if native && s.atLeast(4, 3) {
		work := func(i int) string { return latenessWork + "-" + delays[i%len(delays)].String() }
		sides = append(sides, lateSide{name: "delayed retry of RabbitMQ", work: work, consume: consumeNative})
	}
	return sides
}

func measureLateness(s *server, o settings, r *report) error {
	messages, delays := 2_000, mixed
	if o.short {
		messages, delays = 210, mixedShort
	}
	for _, side := range lateSides(s, delays, o.native) {
		sorted, err := side.measure(s, newLateApp(messages, delays))
		if err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		p50, p99, latest := percentile(sorted, 0.5), percentile(sorted, 0.99), sorted[len(sorted)-1]
		r.lateness = append(r.lateness, latenessResult{s.version, side.name, sorted})
		r.row("lateness", fmt.Sprintf("Lateness, delays of %v mixed", backoff.Schedule(delays)), []string{"RabbitMQ", "way", "messages", "median", "p99", "latest"},
			s.version, side.name, strconv.Itoa(messages), number(p50)+" ms", number(p99)+" ms", number(latest)+" ms")
		if side.recipe {
			r.claimAtLeast(s, "late_per_message_ttl_p99", "ms", p99, 1000)
		} else {
			r.claimAtMost(s, "late_"+word(side.name)+"_p99", "ms", p99, 50)
		}
	}
	return nil
}

// measure returns how late each message was, in ms, sorted.
func (side lateSide) measure(s *server, a *lateApp) ([]float64, error) {
	uri, remove, err := s.vhost("lateness")
	if err != nil {
		return nil, err
	}
	defer remove()
	stop, err := side.consume(uri, a)
	if err != nil {
		return nil, err
	}
	defer stop()
	p, err := newPipeline(uri)
	if err != nil {
		return nil, err
	}
	defer p.close()
	tick := time.NewTicker(time.Second / latenessRate)
	defer tick.Stop()
	for i := range len(a.left) {
		<-tick.C
		if err := p.publish("", side.work(i), byHand(idOf(i), 0)); err != nil {
			return nil, err
		}
	}
	if err := p.flush(); err != nil {
		return nil, err
	}
	return a.wait()
}

// consumeRecipe is the usual recipe: failed messages wait on one queue, each with a TTL of its own. The broker removes expired messages
// only from the head of the queue.
func consumeRecipe(uri string, a *lateApp) (func(), error) {
	const waiting = latenessWork + ".waiting"
	err := with(uri, func(channel *amqp091.Channel) error {
		back := amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": latenessWork}
		return errors.Join(declareQuorum(channel, latenessWork, nil), declareQuorum(channel, waiting, back))
	})
	if err != nil {
		return nil, err
	}
	p, err := newPipeline(uri)
	if err != nil {
		return nil, err
	}
	stop, err := consumeByHand(uri, latenessWork, 16, func(d amqp091.Delivery) {
		delay := a.handle(identity(d))
		if delay > 0 {
			again := byHand(identity(d), 1)
			again.Expiration = strconv.FormatInt(delay.Milliseconds(), 10)
			confirm, err := p.channel.PublishWithDeferredConfirm("", waiting, true, false, again)
			if err != nil || !confirm.Wait() {
				return
			}
		}
		_ = d.Ack(false)
	})
	return func() { stop(); p.close() }, err
}

// consumeTiers is the library: each failure requests a delay.
func consumeTiers(l layout, tiers []time.Duration) func(uri string, a *lateApp) (func(), error) {
	return func(uri string, a *lateApp) (func(), error) {
		c := l.config(uri, backoff.Constant(time.Second, 1))
		c.ExtraTiers = tiers
		return consume(c, latenessWork, func(msg *message.Message) error {
			if delay := a.handle(msg.UUID); delay > 0 {
				return backoff.RetryAfter(errMeasured, delay)
			}
			return nil
		}, middleware.HandlerOptions{})
	}
}

// consumeNative has one queue for each delay, because a queue has one delay.
func consumeNative(uri string, a *lateApp) (func(), error) {
	err := with(uri, func(channel *amqp091.Channel) error {
		var faults []error
		for _, delay := range a.delays {
			faults = append(faults, declareQuorum(channel, latenessWork+"-"+delay.String(), amqp091.Table{
				"x-delayed-retry-type": "failed", "x-delayed-retry-min": delay.Milliseconds(), "x-delayed-retry-max": delay.Milliseconds(),
			}))
		}
		return errors.Join(faults...)
	})
	if err != nil {
		return nil, err
	}
	var stops []func()
	for _, delay := range a.delays {
		stop, err := consumeByHand(uri, latenessWork+"-"+delay.String(), 16, func(d amqp091.Delivery) {
			if a.handle(identity(d)) > 0 {
				_ = d.Reject(true)
				return
			}
			_ = d.Ack(false)
		})
		if err != nil {
			return nil, err
		}
		stops = append(stops, stop)
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}, nil
}

// ladder is a group with its default tiers.
var ladder = layout{name: "ladder", configure: func(c *config.BuilderConfig) { c.TierGroup = "shop" }}
