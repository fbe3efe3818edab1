package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/observe"
	"github.com/tieredretry/watermill-retry/retry"
)

func stormOptions(uri string) config.Config {
	return perQueue.config(uri, backoff.Constant(tier, tries-1))
}

// many has as many messages in flight as the sides by hand that wait for no single confirm.
var many = handling{handlers: 1, concurrency: inFlight, options: retry.Options{Prefetch: inFlight}}

var (
	ownSubscriber = library("library, own subscriber, 1 handler of 256", many, stormOptions)
	ownDefault    = library("library, own subscriber, 1 handler of 16", handling{handlers: 1, concurrency: workers},
		stormOptions)
	overStock = library("library, watermill-amqp, 16 handlers", handling{handlers: workers},
		func(uri string) config.Config {
			c := stormOptions(uri)
			c.AMQP.Consume.Qos.PrefetchCount = workers // as watermillByHand has it
			return c
		})
	handPool16 = watermillByHand("Watermill by hand, 16 handlers, pool 16", 16, workers)
	handPool0  = watermillByHand("Watermill by hand, 16 handlers, pool 0", 0, workers)
)

func measureStorm(b *bench) error {
	messages := b.Size(10_000, 2_000)
	return contest{
		title: fmt.Sprintf("Storm: %d messages fail once, 1%% are dead-lettered after %d tries, tier of %v", messages,
			tries, tier),
		sides: []side{handPipelined, handPool16, handPool0, overStock, ownDefault, ownSubscriber},
		load:  load{messages: messages, failEvery: 1, die: true},
		ratios: []ratio{
			{claim: "storm_one_handler", ours: ownSubscriber.name, theirs: handPipelined.name},
			{claim: "storm_cpu", ours: ownSubscriber.name, theirs: handPipelined.name, processor: true},
			{claim: "storm_16", ours: ownDefault.name, theirs: handPool16.name},
			{claim: "storm_16_handlers", ours: overStock.name, theirs: handPool16.name},
			{claim: "storm_16_pool0", ours: overStock.name, theirs: handPool0.name},
		},
	}.measure(b)
}

// measureObserved compares the library with the library with observers.
func measureObserved(b *bench) error {
	messages := b.Size(10_000, 2_000)
	sampler := sdktrace.WithSampler(sdktrace.TraceIDRatioBased(0.01))
	metrics := observed("with metrics")
	traces := observed("with metrics and 1% of the traces",
		observe.OpenTelemetry(nil, sdktrace.NewTracerProvider(sampler)))
	return contest{
		title: "The storm with observers; the metrics are read every second",
		sides: []side{ownSubscriber, metrics, traces},
		load:  load{messages: messages, failEvery: 1, die: true},
		ratios: []ratio{
			{claim: "observe_storm", ours: metrics.name, theirs: ownSubscriber.name},
			{claim: "observe_storm_traces", ours: traces.name, theirs: ownSubscriber.name},
		},
	}.measure(b)
}

// observed is ownSubscriber with metrics in a registry that is read every second. Prometheus reads every 15 to 60
// seconds.
func observed(name string, also ...retry.Observer) side {
	s := ownSubscriber
	s.name = name
	s.consume = func(uri string, a *app) (func(), error) {
		registry := prometheus.NewRegistry()
		h := many
		h.observers = append(also, observe.Prometheus(registry))
		handle := func(msg *message.Message) error { return a.handle(msg.UUID) }
		_, stop, err := h.consume(stormOptions(uri), handle, work)
		if err != nil {
			return nil, err
		}
		end := sampled(time.Second, func() { _, _ = registry.Gather() })
		return func() { end(); stop() }, nil
	}
	return s
}

// measureHandlers measures handlers that succeed.
func measureHandlers(b *bench) error {
	messages := b.Size(10_000, 2_000)
	stock := library("library, watermill-amqp, 1 handler", handling{handlers: 1}, stormOptions)
	stock.part = workers
	busy := contest{
		title:  "Handlers that succeed and take 5 ms",
		sides:  []side{ownDefault, stock},
		load:   load{messages: messages / 2, work: 5 * time.Millisecond},
		ratios: []ratio{{claim: "success_5ms", ours: ownDefault.name, theirs: stock.name}},
	}
	idle := contest{
		title:  fmt.Sprintf("Handlers that succeed and take no time, %d messages in flight", inFlight),
		sides:  []side{handConsumer, ownSubscriber},
		load:   load{messages: 2 * messages},
		ratios: []ratio{{claim: "success_0ms", ours: ownSubscriber.name, theirs: handConsumer.name}},
	}
	if err := busy.measure(b); err != nil {
		return err
	}
	return idle.measure(b)
}

// measureTierFull compares an app with one tier of three full with the same app without.
func measureTierFull(b *bench) error {
	messages := b.Size(10_000, 2_000)
	own := library("own subscriber, 1 handler of 16", handling{handlers: 1, concurrency: workers}, threeTiers)
	many := library("own subscriber, 100 handlers of 4", handling{handlers: 100, concurrency: 4}, threeTiers)
	few := contest{
		title:  "One of three tiers is full: 1% of the messages fail once, each takes 5 ms",
		sides:  []side{full(own), own},
		load:   load{messages: messages, failEvery: 100, firstOnly: true, work: 5 * time.Millisecond, waits: lowestTier},
		ratios: []ratio{{claim: "one_tier_full", ours: full(own).name, theirs: own.name}},
	}
	storm := contest{
		title:  "The storm on 100 handlers of one process, one of three tiers is full",
		sides:  []side{full(many), many},
		load:   load{messages: messages, failEvery: 1, die: true, waits: lowestTier},
		ratios: []ratio{{claim: "storm_tier_full", ours: full(many).name, theirs: many.name}},
	}
	if err := few.measure(b); err != nil {
		return err
	}
	return storm.measure(b)
}

const lowestTier = 800 * time.Millisecond

// threeTiers declares nothing where it consumes: a full tier has an argument that the library does not declare.
func threeTiers(uri string) config.Config {
	c := perQueue.config(uri, backoff.Schedule{lowestTier, tier})
	c.Policy.ExtraTiers = []time.Duration{1200 * time.Millisecond}
	c.VerifyOnly = true
	return c
}

// full returns the same side with one tier of three full for good: that on which each first retry would wait. Its
// messages cannot leave it, because the queue that they are for is full, too.
func full(s side) side {
	s.name += ", tier full"
	s.declare = func(uri string) error {
		t, err := topologyOf(threeTiers(uri), work)
		if err != nil {
			return err
		}
		var fullTier, back string
		for i, queue := range t.Queues {
			if fmt.Sprint(queue.Arguments["x-message-ttl"]) == fmt.Sprint(lowestTier.Milliseconds()) {
				t.Queues[i].Arguments["x-max-length"] = 1
				fullTier, back = queue.Name, fmt.Sprint(queue.Arguments["x-dead-letter-exchange"])
			}
		}
		return with(uri, func(channel *amqp091.Channel) error {
			const stuck = "stuck"
			limit := amqp091.Table{"x-max-length": 1, "x-overflow": "reject-publish"}
			return errors.Join(t.Declare(channel), declareQuorum(channel, stuck, limit), saturate(channel, stuck),
				channel.QueueBind(stuck, fullTier, back, false, nil), saturate(channel, fullTier))
		})
	}
	return s
}

// saturate publishes to a queue until it refuses all messages.
func saturate(channel *amqp091.Channel, queue string) error {
	refused := 0 // in a row: a queue that has just become longer than its limit may still take a few
	for range 1000 {
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false,
			amqp091.Publishing{Body: []byte("fills")})
		if err != nil {
			return err
		}
		if refused++; confirm.Wait() {
			refused = 0
		}
		if refused == 20 {
			return nil
		}
	}
	return errors.New("queue " + queue + " refuses no messages")
}
