package main

// A claim compares a figure with its target, on each broker.
type claim struct {
	name   string
	what   string
	least  bool // the target is a lower bound, else an upper one
	target float64
	unit   string
}

func atLeast(name string, target float64, unit, what string) claim {
	return claim{name, what, true, target, unit}
}
func atMost(name string, target float64, unit, what string) claim {
	return claim{name, what, false, target, unit}
}

// claims are all claims, in the order of the page.
var claims = []claim{
	atMost("success_overhead", 0.15, "", "what the middleware adds to a handler that succeeds, divided by what "+
		"Watermill's Retry adds"),
	atMost("success_allocations", 0, "", "allocations that the middleware adds to a handler that succeeds"),
	atMost("observe_success_allocations", 2, "", "how many more it has with observe.Prometheus"),

	atLeast("loop_16", 0.95, "",
		"rate of the failure publisher, divided by a loop of amqp091-go with deferred confirms on one channel; 16 "+
			"callers"),
	atLeast("loop_64", 0.95, "", "the same, 64 callers"),
	atLeast("loop_256", 0.95, "", "the same, 256 callers"),
	atLeast("watermill_amqp_pool0_16", 4, "",
		"the same, divided by watermill-amqp's publisher with confirms and a channel for each publish; 16 callers"),
	atLeast("watermill_amqp_pool16_16", 1.1, "", "the same, a channel for each caller"),

	atMost("lateness_p99", 50, "ms", "lateness, 99th percentile, over watermill-amqp with 16 handlers; tiers of "+
		"500 ms and 1 s"),
	atLeast("late_per_message_ttl_p99", 1000, "ms", "the same with the usual recipe, a TTL of each message"),
	atMost("late_tiers_per_queue_p99", 50, "ms", "the same with tiers of each work queue"),
	atMost("late_tiers_grouped_p99", 50, "ms", "the same with the tiers of a group"),
	atMost("late_ladder_p99", 50, "ms", "the same with the default tiers of a group"),

	atLeast("storm_one_handler", 0.85, "", "storm: the library's own subscriber, divided by amqp091-go, pipelined"),
	atLeast("storm_16_handlers", 1, "", "storm: the library over watermill-amqp, divided by Watermill by hand with "+
		"pool 16"),
	atLeast("storm_16_pool0", 2.5, "", "the same, divided by Watermill by hand with pool 0"),
	atLeast("observe_storm", 0.95, "", "storm: with observe.Prometheus, divided by the same without"),
	atLeast("observe_storm_traces", 0.9, "", "the same, and 1% of the traces"),
	atLeast("success_5ms", 12, "",
		"handlers of 5 ms: the own subscriber with a concurrency of 16, divided by watermill-amqp's, one handler each"),
	atLeast("success_0ms", 0.85, "",
		"handlers of 0 ms: the own subscriber, divided by a consumer of amqp091-go, 256 messages in flight each"),
	atLeast("one_tier_full", 0.9, "",
		"one of three tiers is full, 1% of messages fail once, handlers take 5 ms: divided by the same app without"),
	atLeast("one_tier_full_stock", 0.9, "", "the same over watermill-amqp, 16 handlers"),
	atLeast("storm_tier_full", 0.7, "", "storm on 100 handlers of one process with a full tier, divided by the "+
		"same without"),

	atMost("jitter_highest_over_mean", 1.5, "",
		"messages that fail together on a tier of 5s with a jitter of 0.2: the most in 100 ms, divided by the mean "+
			"of the second"),

	atMost("outage_dead_letters", 0, "", "dead letters of an app with a breaker after an outage"),
	atMost("outage_calls", 0.01, "", "its calls during the outage, divided by those of an app without a breaker"),
	atMost("outage_recovery", 1.2, "",
		"from the end of the outage until the backlog is done, divided by what as many messages need without an "+
			"outage"),

	atLeast("redrive_rate", 5000, "/s", "letters that Store.Redrive sends in a second"),
	atMost("redrive_memory", 100, "MiB", "largest resident memory of wmretry dead redrive and dead list"),

	atMost("neighbours_deleted", 1000, "ms",
		"lateness of a group's good messages, 99th percentile, while as many wait for a work queue that is deleted"),
	atMost("neighbours_full_quorum", 2000, "ms", "the same for a full quorum queue"),
	atMost("neighbours_full_classic", 2000, "ms", "the same for a full classic queue"),
	atMost("group_rolling_restart_good_p99", 2000, "ms",
		"the same while the nodes of a cluster restart, with classic queues that are away meanwhile"),
	atMost("group_rolling_restart_lost", 0, "", "messages that the restarts lose"),

	atLeast("worker_watermill_amqp", 20, "",
		"one handler, 5% fail once: time with Watermill's Retry, divided by that of the library over the same "+
			"subscriber"),
	atLeast("worker_own_subscriber", 20, "", "the same over the library's own subscriber"),

	atMost("million_app_memory", 64, "MiB", "largest memory of the library's process above idle"),
	atMost("million_lost", 0, "", "messages that do not come back, by identity"),
	atMost("million_early", 0, "", "messages that come back too early"),
	atMost("million_twice", 0, "", "messages that come back twice"),
	atLeast("million_drain", 0.9, "",
		"messages a second that come back to the library's subscriber, divided by those that a consumer by hand "+
			"gets of the same copies"),
	atLeast("million_drain_all_by_hand", 0.9, "", "the same, divided by those of the run that has only code by hand"),

	atMost("declare_grouped_1000", 15, "s", "time to declare tiers and bindings of 1,000 work queues in a group"),
	atLeast("publish_grouped_1000_to_10", 0.8, "",
		"messages a second to 1,000 work queues in a group, divided by those to 10"),

	atMost("start_declarations_per_queue", 1, "", "how often one of 100 instances declares the topology of one "+
		"work queue, at most"),
	atMost("start_consuming_per_queue", 60, "s", "time until the last of 100 instances consumes with all its handlers"),
	atMost("start_declarations_grouped", 1, "", "the same for a group"),
	atMost("start_consuming_grouped", 60, "s", "the same for a group"),
	atMost("crowd_rounds_that_fail", 0, "", "rounds of starts and removals after which the broker starts no quorum "+
		"queue"),

	atMost("cost_retry", 1.15, "",
		"the broker's processor time for a retry with tiers of each work queue, divided by that of one by hand"),
}
