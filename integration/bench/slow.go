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
var handFetchesOne = watermillByHand("Watermill by hand, 16 handlers, prefetch 1", 1)

// measureSlowConfirm compares the default of Prefetch with the default of watermill-amqp, and with the fastest by hand;
// and so a Prefetch of 64.
func measureSlowConfirm(b *bench) error {
	fetches64 := library("library, own subscriber, 1 handler of 16, Prefetch 64",
		handling{handlers: 1, concurrency: workers, options: retry.Options{Prefetch: 64}}, stormOptions)
	messages := b.Size(6_000, 300)
	return contest{
		title:  fmt.Sprintf("%d messages, all that the broker sends arrives %v later", messages, slowBy),
		rounds: 3,
		sides:  []side{handFetchesOne, handPool16, ownDefault, fetches64},
		load:   load{messages: messages, failEvery: 1, die: true, latency: slowBy},
		ratios: []ratio{
			{claim: "storm_16_slow_confirm", ours: ownDefault.name, theirs: handFetchesOne.name},
			{claim: "storm_16_slow_confirm_ahead", ours: ownDefault.name, theirs: handPool16.name},
			{claim: "storm_16_slow_confirm_64", ours: fetches64.name, theirs: handPool16.name},
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
