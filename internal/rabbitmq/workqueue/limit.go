package workqueue

import (
	"math"
	"slices"
)

const (
	// NoLimit is the delivery limit of a queue that has none.
	NoLimit = math.MaxInt64
	// DefaultLimit is that of a quorum queue from RabbitMQ 4.0 on, unless it has another one.
	DefaultLimit = 20
	// FarLimit is a limit that is not reached by hand. Queues of the library have a million.
	FarLimit = 100_000
)

// Before4 reports whether a broker is older than 4.0: a quorum queue without a delivery limit has none there, and -1
// means no delivery at all.
func Before4(broker string) bool { return parseVersion(broker).major == 3 }

// DeliveryLimit returns how often a quorum queue takes a message back, from the limits that are set: by its argument
// and by its policies.
func DeliveryLimit(broker string, set ...int64) int64 {
	switch old := Before4(broker); {
	case len(set) == 0 && old:
		return NoLimit
	case len(set) == 0:
		return DefaultLimit
	case old:
		return max(slices.Min(set), 0) // -1 is below the first count
	case slices.Max(set) < 0:
		return NoLimit
	case slices.Min(set) < 0: // from 4.0 on a limit takes the place of no limit
		return slices.Max(set)
	}
	return slices.Min(set)
}
