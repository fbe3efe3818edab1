package main

import (
	"fmt"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
)

func stormOptions(uri string) config.Config {
	return configOf(uri, backoff.Constant(tier, 2))
}

// many has as many messages in flight as the sides by hand that wait for no single confirm.
var many = handling{Concurrency: inFlight, Prefetch: inFlight}

var ownSubscriber = library("library, own subscriber, 1 handler of 256", many, stormOptions)

func measureStorm(b *bench) error {
	messages := b.Size(10_000, 2_000)
	return contest{
		title: fmt.Sprintf("Storm: %d messages fail once, tier of %v", messages, tier),
		sides: []side{handPipelined, ownSubscriber},
		load:  load{messages: messages, failEvery: 1},
		ratios: []ratio{
			{claim: "storm_one_handler", ours: ownSubscriber.name, theirs: handPipelined.name},
			{claim: "storm_cpu", ours: ownSubscriber.name, theirs: handPipelined.name, processor: true},
		},
	}.measure(b)
}
