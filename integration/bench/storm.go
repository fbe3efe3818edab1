package main

import (
	"fmt"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
)

func stormOptions(uri string) config.Config {
	return perQueue.config(uri, backoff.Constant(tier, tries-1))
}

// many has as many messages in flight as the sides by hand that wait for no single confirm.
var many = handling{Concurrency: inFlight, Prefetch: inFlight}

var (
	ownSubscriber = library("library, own subscriber, 1 handler of 256", many, stormOptions)
	ownDefault    = library("library, own subscriber, 1 handler of 16", handling{Concurrency: workers}, stormOptions)
	handPool16    = watermillByHand()
)

func measureStorm(b *bench) error {
	messages := b.Size(10_000, 2_000)
	return contest{
		title: fmt.Sprintf("Storm: %d messages fail once, 1%% are dead-lettered after %d tries, tier of %v", messages,
			tries, tier),
		sides: []side{handPipelined, handPool16, ownDefault, ownSubscriber},
		load:  load{messages: messages, failEvery: 1, die: true},
		ratios: []ratio{
			{claim: "storm_one_handler", ours: ownSubscriber.name, theirs: handPipelined.name},
			{claim: "storm_cpu", ours: ownSubscriber.name, theirs: handPipelined.name, processor: true},
			{claim: "storm_16", ours: ownDefault.name, theirs: handPool16.name},
		},
	}.measure(b)
}
