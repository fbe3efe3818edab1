package middleware

import (
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
)

// RetryEvent describes a failure whose message now waits on a tier. Fields may be added.
type RetryEvent struct {
	Topic       string        // the topic the handler subscribes to
	Handler     string        // the handler's name in the router
	MessageUUID string        // empty for messages of publishers that set none
	Failures    int           // how often the message has failed, this failure included
	Delay       time.Duration // how long it is to wait: the schedule's delay, or the requested delay of backoff.RetryAfter
	Tier        backoff.Tier  // the tier it waits on first
	DueAt       time.Time     // when the handler is to be called again
	Destination Destination   // where the copy was published
	Err         error         // why it failed
}

// ParkEvent describes a message that came back before its delay was over and waits again, uncounted. Fields may be added.
type ParkEvent struct {
	Topic       string       // the topic the handler subscribes to
	Handler     string       // the handler's name in the router
	MessageUUID string       // empty for messages of publishers that set none
	Failures    int          // how often the message has failed so far
	Tier        backoff.Tier // the tier it waits on
	DueAt       time.Time    // when the handler is to be called again
	Destination Destination  // where the copy was published
}

// DeadLetterEvent describes a message that was dead-lettered. Fields may be added.
type DeadLetterEvent struct {
	Topic       string      // the topic the handler subscribes to
	Handler     string      // the handler's name in the router
	MessageUUID string      // empty for messages of publishers that set none
	Failures    int         // how often the message has failed, this failure included
	DeadReason  DeadReason  // why it was dead-lettered
	Destination Destination // where the copy was published
	Err         error       // why it failed the last time
}
