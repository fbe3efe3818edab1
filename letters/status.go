package letters

import "time"

// forwardedAtOnce is how many due messages a tier without a fault can have: RabbitMQ forwards so many at the same time.
const forwardedAtOnce = 32

// Status is the work queues of a backend, with what waits for a retry and their dead letters.
type Status struct {
	At      time.Time   `json:"at"`
	Queues  []WorkQueue `json:"queues"`
	Orphans Depth       `json:"orphans"`
	// Stray are tiers of work queues that do not exist and have no dead-letter queue. What waits on them becomes an
	// orphan.
	Stray []Depth `json:"stray,omitempty"`
}

// WorkQueue is a work queue with everything that belongs to it.
type WorkQueue struct {
	Name string `json:"name"`
	// Depth has the messages of the partitions too, where a handler has Order.Partitions. Its Consumers are those of the
	// work queue alone.
	Depth
	// Tiers are sorted by their delay. Work queues of a group all have the tiers of the group.
	Tiers []Tier `json:"tiers,omitempty"`
	// Inbox is between the tiers of a group and the work queue. Its Queue is empty where the work queue needs none.
	Inbox Depth `json:"inbox,omitzero"`
	Dead  Depth `json:"dead"`
	// OldestDead is when the first of the dead letters was given up. It is zero where that is not known, as on RabbitMQ.
	OldestDead time.Time `json:"oldest_dead,omitzero"`
	// Partitions is how many queues a handler with Order.Partitions has beside the work queue.
	Partitions int `json:"partitions,omitzero"`
}

// Depth is how many messages a queue has.
type Depth struct {
	Queue     string `json:"queue"`            // empty: it is not known what the queue has
	Messages  int    `json:"messages"`         // all of them
	Ready     int    `json:"ready"`            // the messages that no consumer has; -1: not known
	Unacked   int    `json:"unacked"`          // the messages that a consumer has
	Consumers int    `json:"consumers"`        // -1: not known
	Missing   bool   `json:"missing,omitzero"` // the queue does not exist
}

// Tier is the queue of a tier.
type Tier struct {
	Depth
	Delay time.Duration `json:"delay"` // in nanoseconds; 0: messages of all delays wait together
	// Group is the group of work queues that share the tier. Empty: it belongs to the work queue alone.
	Group string `json:"group,omitzero"`
	// Retired is true where no new message gets to the tier, or comes back from it by a key of its own.
	Retired bool `json:"retired,omitzero"`
	// NextDue is when the first of its messages is due at the latest. It is zero where the tier is empty. RabbitMQ does
	// not show how long a message has waited, so there this is a full delay after Status.At.
	NextDue time.Time `json:"next_due,omitzero"`
	// Overdue is how many of its messages have waited for their delay and are not yet in their work queue. A tier
	// that forwards without a fault can have up to 32, which are on their way.
	Overdue int `json:"overdue,omitzero"`
}

// IsOverdue reports whether more messages are overdue than a tier without a fault can have.
func (t Tier) IsOverdue() bool { return t.Overdue > forwardedAtOnce || t.Delay == 0 && t.Overdue > 0 }
