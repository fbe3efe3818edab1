package middleware

import (
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// RetryEvent tells of a failure whose message now waits on a tier. Fields may be added.
type RetryEvent struct {
	Topic       string        // the topic the handler subscribes to
	Handler     string        // the handler's name in the router
	MessageUUID string        // empty for messages of publishers that set none
	Failures    int           // how often the message has failed, this failure included
	Delay       time.Duration // how long it is to wait: the schedule's delay, or the wish of backoff.RetryAfter
	Tier        backoff.Tier  // the tier it waits on first
	DueAt       time.Time     // when the handler is to be called again
	RetryTopic  string        // where the copy was published
	Err         error         // why it failed
}

// ParkEvent tells of a message that came back well before it was due and waits again, uncounted. Fields may be added.
type ParkEvent struct {
	Topic       string
	Handler     string
	MessageUUID string
	Failures    int          // how often the message has failed so far
	Tier        backoff.Tier // the tier it waits on
	DueAt       time.Time
	RetryTopic  string
}

// DeadLetterEvent tells of a message that was given up and dead-lettered. Fields may be added.
type DeadLetterEvent struct {
	Topic           string
	Handler         string
	MessageUUID     string
	Failures        int    // how often the message has failed, this failure included
	Reason          string // DeadReasonExhausted and its like
	DeadLetterTopic string // where the copy was published
	Err             error  // why it failed the last time
}
