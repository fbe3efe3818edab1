package model

import "time"

// Rules are what the versions of RabbitMQ do differently. One table has them all.
type Rules struct {
	Version string

	DeliveryLimit   int64 // of a quorum queue that has none; 0: no limit
	UnlimitedDrops  bool  // a delivery limit of -1 removes a message at its first requeue
	NackUncounted   bool  // basic.nack with requeue does not count towards the delivery limit
	TimeoutCancels  bool  // a consumer timeout on a quorum queue cancels the consumer, in place of closing its channel
	QuorumPriority  bool  // quorum queues deliver priorities above 4 first
	LastDeath       bool  // dead letters have x-last-death-*
	RefuseTransient bool  // queues that are neither durable nor exclusive are refused
	AcquiredCount   bool  // deliveries of quorum queues have x-acquired-count
}

// Versions are the versions that have rules, from the oldest on.
var Versions = []Rules{
	{Version: "3.10.8", UnlimitedDrops: true},
	{Version: "4.0.5", DeliveryLimit: 20, QuorumPriority: true, LastDeath: true},
	{
		Version: "4.3.6", DeliveryLimit: 20, NackUncounted: true, TimeoutCancels: true, QuorumPriority: true,
		LastDeath: true, RefuseTransient: true, AcquiredCount: true,
	},
}

const (
	// forwardedAtOnce is how many messages a quorum queue dead-letters at-least-once at the same time.
	forwardedAtOnce = 32
	// forwardAgain is how long such a message waits that a queue did not take, or that has no queue.
	forwardAgain = 3 * time.Minute

	heartbeat              = 60 // seconds, as the broker proposes it
	defaultConsumerTimeout = 30 * time.Minute
)
