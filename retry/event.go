package retry

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// Event is the outcome of one delivery, for Observer.Event. Fields may be added.
type Event struct {
	Context     context.Context // of the message, for its values, such as a trace id. It may have ended
	Outcome     Outcome
	Topic       string // the topic the handler subscribes to
	Handler     string // the handler's name in the router
	MessageUUID string // empty for messages of publishers that set none

	// Record is the failure record of the copy or of the discarded message, this failure included. Of the other
	// outcomes it is the record that the message came with; it is zero at a first try.
	Record Record

	Age         time.Duration // since the first failure; 0 where there is none, or its time is forged
	Duration    time.Duration // of the handler's call; 0 where it was not called
	Delay       time.Duration // how long the copy is to wait
	Spread      time.Duration // how much longer Jitter can make the shortest Delay; 0: the delay has no jitter
	Tier        backoff.Tier  // the tier that it waits on first
	Destination Destination   // where the copy was published
	Rule        string        // the name of the rule that has decided
	// the tier that the message had waited on first; of a lane its tier; 0: it came from none, or the handler was not
	// called
	Arrived backoff.Tier
	// how long ago it was due when the handler was called, by the clocks of two hosts; 0 where Arrived is
	Lateness time.Duration
	// why the handler failed. Of Held and GivenBack: why the copy cannot be published, where that is the cause
	Err error

	metadata message.Metadata
}

// Metadata returns a copy of the message's metadata, without the failure record.
func (e Event) Metadata() message.Metadata {
	metadata := maps.Clone(e.metadata)
	for _, key := range recordKeys {
		delete(metadata, key)
	}
	delete(metadata, recordkey.Properties)
	delete(metadata, recordkey.UnmarshalError)
	return metadata
}

// SetMetadata sets what Metadata copies. The middleware calls it, and so does the test of an Observer.
func (e *Event) SetMetadata(metadata message.Metadata) { e.metadata = metadata }

// Destination is where a copy is published.
type Destination struct {
	// Topic is the topic that the copy is published to. On RabbitMQ it is the routing key.
	Topic string
	// Queue is the queue or topic on which the copy then is, for logs and events. The default is Topic.
	Queue string
}

// String returns Queue, or Topic where Queue is empty.
func (d Destination) String() string { return cmp.Or(d.Queue, d.Topic) }
