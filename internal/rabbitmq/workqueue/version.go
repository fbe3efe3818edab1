package workqueue

import (
	"strconv"
	"strings"
)

// version is that of a broker, as it names it in its server properties.
type version struct {
	major, minor, patch int
	text                string
}

// parseVersion reads "4.0.5" and "4.1.0-rc.1". The parts that it cannot read are zero, and the rules below do not use
// them.
func parseVersion(text string) version {
	v := version{text: text}
	for i, word := range strings.SplitN(text, ".", 3) {
		digits := strings.TrimFunc(word, func(r rune) bool { return r < '0' || r > '9' })
		digits, _, _ = strings.Cut(digits, "-")
		number, err := strconv.Atoi(digits)
		if err != nil {
			return v
		}
		*[]*int{&v.major, &v.minor, &v.patch}[i] = number
	}
	return v
}

func (v version) String() string { return v.text }

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// dropsAtDeliveryLimit: since 4.0 quorum queues have a delivery limit of 20. Before 4.3 a nack with requeue counts
// towards it.
func (v version) dropsAtDeliveryLimit() bool { return v.atLeast(4, 0) && !v.atLeast(4, 3) }

// CountsRequeues reports whether a nack with requeue counts towards the delivery limit of a quorum queue: before 4.3,
// and where the version is not known.
func CountsRequeues(broker string) bool { return !parseVersion(broker).atLeast(4, 3) }

// Delays reports whether quorum queues of a broker can delay messages themselves.
func Delays(broker string) bool { return parseVersion(broker).atLeast(4, 3) }

// refusesTransient: 4.3 refuses queues that are neither durable nor exclusive.
func (v version) refusesTransient() bool { return v.atLeast(4, 3) }

// DropsUnprotected reports whether a broker drops messages of a quorum queue without a dead-letter exchange that were
// requeued 20 times.
func DropsUnprotected(broker string) bool { return parseVersion(broker).dropsAtDeliveryLimit() }

// StopsSingleConsumers reports whether a single active consumer can stop to get messages: from 4.3.0 to 4.3.5, where
// the one before it has lost its connection.
func StopsSingleConsumers(broker string) bool {
	v := parseVersion(broker)
	return v.major == 4 && v.minor == 3 && v.patch < 6
}

// losesCycles: 3.13.0 to 3.13.2 drop a message that is dead-lettered, published again and dead-lettered again, because
// they count it as a dead-letter cycle.
func (v version) losesCycles() bool { return v.major == 3 && v.minor == 13 && v.patch < 3 }
