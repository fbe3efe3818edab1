package postgresretry

import "time"

const (
	// wholeInterval is how often a take looks at all due times of a topic.
	wholeInterval = time.Second

	// floorMargin is how much earlier than the message that was taken last another one may be due: it was not committed
	// yet, or another process had locked it.
	floorMargin = 200 * time.Millisecond
)

// floor is a due time below which a topic has no message. Deleted rows stay in the index until a vacuum, and with a
// long transaction anywhere in the database each take would read all of them. A message that is below the floor
// nevertheless comes with the next take of the whole topic.
type floor struct {
	due   int64     // microseconds of the server's clock
	whole time.Time // when the whole topic was read
}

// floors are those of a connection, by topic. It is not safe for concurrent use.
type floors map[string]floor

// get returns the floor for a take now. It is 0 for the whole topic.
func (f floors) get(topic string, now time.Time) int64 {
	known := f[topic]
	if now.Sub(known.whole) >= wholeInterval {
		f[topic] = floor{whole: now}
		return 0
	}
	return known.due
}

// taken notes that a message was taken. Messages are taken in the order of their due times.
func (f floors) taken(topic string, due int64) {
	known := f[topic]
	known.due = max(known.due, due-floorMargin.Microseconds())
	f[topic] = known
}
