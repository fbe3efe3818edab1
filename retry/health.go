package retry

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Health is what a Connection does at one moment. Its JSON has the names of the fields.
type Health struct {
	// Links are the network connections that this library itself keeps open: two on RabbitMQ, three with an
	// Order.Partitions, none on other backends.
	Links []LinkHealth
	// Subscriptions are those that have begun and have not ended.
	Subscriptions []SubscriptionHealth

	// Tiers are the queues with messages whose delay is over and which the broker cannot forward. RabbitMQ with
	// rabbitmq.Settings.Management shows them, and NATS, as the subject "<Prefix>.wait.>". They do not count for Ready:
	// new instances would not help.
	Tiers []TierHealth
	// TiersError is why the last look for such queues has failed: on RabbitMQ Tiers are then those of an earlier look. On
	// NATS it is also why what is overdue cannot come back. Empty: it has not failed, or nothing looks.
	TiersError string `json:",omitzero"`
}

// TierHealth is the state of a tier, or of an inbox, with messages that are overdue.
type TierHealth struct {
	Queue   string
	Overdue int       // messages whose delay is over; on NATS, of the 256 at most that a look reads
	Since   time.Time // since when some of them stay, at the precision of 15 s
}

// LinkHealth is the state of one network connection.
type LinkHealth struct {
	Name      string // "consuming", "publishing", or "moving" with an Order.Partitions
	Connected bool
	Blocked   bool      // the broker has blocked the connection because of an alarm
	Since     time.Time // since when it is connected, or is not
	// Reconnects is how often it was opened again after it was lost.
	Reconnects int

	// LastError is why the connection was lost, or could not be opened again, the last time. Empty: never.
	LastError   string    `json:",omitzero"`
	LastErrorAt time.Time `json:",omitzero"`
}

// SubscriptionHealth is the state of one subscription.
type SubscriptionHealth struct {
	Name      string // the name of the handler, or what Connection.Subscriber was called with
	Topic     string
	Queue     string    // the queue, or the topic
	Consuming bool      // messages are delivered
	Since     time.Time // since when it is consuming, or is not

	// Calls is how many places of Concurrency are taken: by calls of the handler, and by messages that keep theirs until
	// they are settled. InFlight is how many messages were handed out and are not settled, at most Prefetch: those that
	// wait for the confirms of their copies or produced messages are among them, those that were fetched ahead are not.
	// While Calls is Concurrency, the handler is the bottleneck; while only InFlight is Prefetch, it is the broker. They
	// are 0 where the backend does not count them.
	Calls, Concurrency, InFlight, Prefetch int

	// Deliveries is how many messages the subscription has received, Redeliveries how many of them the broker had
	// delivered before, and Reconnects how often it began to consume again. They are 0 where the backend does not count
	// them.
	Deliveries, Redeliveries, Reconnects uint64

	// Backlog is how many messages of the topic, and of the topic of its retries, are not settled, in the partitions that
	// this process has: the consumer lag, as the last answer to a fetch shows it. Only Kafka counts it. While a process
	// has fetched hundreds of messages ahead, it fetches no more, and what is published then does not count yet.
	Backlog int

	// OrderWaiting is of a handler with Order.Partitions: the messages that wait for their retry or are blocked, and
	// those of their keys behind them, in the partition with most of them. When it is Prefetch, that partition stands.
	OrderWaiting int `json:",omitzero"`
	// Blocked are the keys of the messages that wait for an operator, because the handler has Order.Block: one for each
	// message, "" where it has no key. Nil without Order.Partitions.
	Blocked []string `json:",omitzero"`

	// Paused is why the handler takes no new messages, or PausedLimit at most, sorted: "paused" (Connection.Pause),
	// "failing" (too many messages fail) or "holding" (too many copies cannot be published). Nil: it takes messages
	// without a limit but Concurrency and Prefetch.
	Paused []string
	// PausedSince is since when there is a reason.
	PausedSince time.Time `json:",omitzero"`
	// PausedLimit is how many messages the handler has in flight at most, while those decide whether a handler that has
	// failed goes on. 0: it takes none. Consuming is then false on RabbitMQ, where the consumer is cancelled.
	PausedLimit int
	// Keys are, of a handler with Breaker.Key, those that are limited, and then those whose messages had to wait most
	// often: 20 at most, by their names.
	Keys map[string]KeyHealth `json:",omitempty"`
	// Holding is how many messages are held, because their copies cannot be published. Those that are refused for good
	// are among them, and pause nothing.
	Holding int

	// LastError is why the subscription ended, or why it could not begin again, the last time. Empty: never.
	LastError   string    `json:",omitzero"`
	LastErrorAt time.Time `json:",omitzero"`
}

// KeyHealth is the state of one key of a handler, in this process.
type KeyHealth struct {
	// Paused is why the key is limited: "paused" or "limited" (an operator), "failing", "slow", or "retry after" (an
	// error of backoff.RetryAfter). Empty: it is not.
	Paused string    `json:",omitzero"`
	Until  time.Time `json:",omitzero"` // when that ends; zero: not known
	Limit  int       // calls at the same time, at most, while it is limited. 0: none
	Parked uint64    // how often a message of the key had to wait
}

// Ready returns nil if every link is connected and every subscription is consuming or paused. Otherwise the error names
// all that is not. A blocked link is no fault: an alarm of the broker concerns all instances of an app, and none of
// them can do anything about it. Nor is a paused handler: what makes one fail makes those of all instances fail, and
// none of them would be left.
func (h Health) Ready() error {
	var faults []error
	fault := func(cause, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if cause != "" {
			text += ": " + cause
		}
		faults = append(faults, errors.New(text))
	}
	for _, l := range h.Links {
		if !l.Connected {
			fault(l.LastError, "the %s connection is not open since %s", l.Name, l.Since.Format(time.RFC3339))
		}
	}
	for _, s := range h.Subscriptions {
		if !s.Consuming && (len(s.Paused) == 0 || s.PausedLimit > 0) {
			fault(s.LastError, "handler %q does not consume %q since %s", s.Name, s.Queue, s.Since.Format(time.RFC3339))
		}
	}
	return errors.Join(faults...)
}

// ReadinessHandler answers readiness probes: status 200 and "ready", or 503 and the text of Health.Ready. The function
// is a Connection's Health. The text can contain host names, and never a password.
func ReadinessHandler(health func() Health) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := health().Ready(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err)
			return
		}
		_, _ = fmt.Fprintln(w, "ready")
	})
}
