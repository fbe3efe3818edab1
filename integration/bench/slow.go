package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/retry"
)

const slowBy = 10 * time.Millisecond

// handFetchesOne has the default prefetch of watermill-amqp, so each handler also waits for its next message.
var handFetchesOne = watermillByHand("Watermill by hand, 16 handlers, prefetch 1", workers, 1)

// ownWithPrefetch is ownDefault with a Prefetch.
func ownWithPrefetch(prefetch int) side {
	h := handling{handlers: 1, concurrency: workers, options: retry.Options{Prefetch: prefetch}}
	return library(fmt.Sprintf("library, own subscriber, 1 handler of 16, Prefetch %d", prefetch), h, stormOptions)
}

// measureSlowConfirm has messages that fail, and a slow network.
func measureSlowConfirm(b *bench) error {
	return b.slow([3]string{"storm_16_slow_confirm", "storm_16_slow_confirm_ahead", "storm_16_slow_confirm_64"},
		load{messages: b.Size(6_000, 300), failEvery: 1, die: true})
}

// measureSlowProduce has messages that produce another one, and a slow network.
func measureSlowProduce(b *bench) error {
	return b.slow([3]string{"produce_16_slow_confirm", "produce_16_slow_confirm_ahead", "produce_16_slow_confirm_64"},
		load{messages: b.Size(2_000, 300), produces: true})
}

// slow compares the default of Prefetch with the default of watermill-amqp, and with the fastest by hand; and so a
// Prefetch of 64.
func (b *bench) slow(claims [3]string, l load) error {
	l.latency = slowBy
	fetches64 := ownWithPrefetch(64)
	return contest{
		title:  fmt.Sprintf("%d messages, all that the broker sends arrives %v later", l.messages, slowBy),
		rounds: 3,
		sides:  []side{handFetchesOne, handPool16, ownDefault, fetches64},
		load:   l,
		ratios: []ratio{
			{claim: claims[0], ours: ownDefault.name, theirs: handFetchesOne.name},
			{claim: claims[1], ours: ownDefault.name, theirs: handPool16.name},
			{claim: claims[2], ours: fetches64.name, theirs: handPool16.name},
		},
	}.measure(b)
}

// slowed returns the address of a proxy that forwards all data of the broker so much later, in order.
func slowed(uri string, late time.Duration) (address string, end func(), err error) {
	if late == 0 {
		return uri, func() {}, nil
	}
	proxy, address, err := broker.NewProxy(uri)
	if err != nil {
		return "", nil, err
	}
	_, err = proxy.Toxics.AddToxicJson(strings.NewReader(fmt.Sprintf(
		`{"type":"latency","stream":"downstream","attributes":{"latency":%d}}`, late.Milliseconds())))
	return address, proxy.Stop, err
}

// measureFair compares two instances of an app with two that fetch no messages ahead.
func measureFair(b *bench) error {
	ahead, none := twice(ownDefault), twice(ownWithPrefetch(workers))
	return contest{
		title:  "Two instances share 64 messages of 100 ms",
		rounds: 15,
		sides:  []side{ahead, none},
		load:   load{messages: 64, work: 100 * time.Millisecond},
		ratios: []ratio{{claim: "fair_slow", ours: none.name, theirs: ahead.name}}, // the claim is about times, not rates
	}.measure(b)
}

// twice returns the same side with two instances.
func twice(s side) side {
	consume := s.consume
	s.consume = func(uri string, a *app) (stop func(), err error) {
		stopFirst, err := consume(uri, a)
		if err != nil {
			return nil, err
		}
		stopSecond, err := consume(uri, a)
		return func() { stopFirst(); stopSecond() }, err
	}
	return s
}
