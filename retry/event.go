package retry

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

// Event is one delivery of a message, for Observer.Begin before the handler is called, and for Observer.Event with the
// outcome. Fields may be added.
type Event struct {
	Context     context.Context // the context of the message, for its values, such as a trace id. It may have ended
	Outcome     Outcome         // empty in Begin
	Topic       string          // the topic the handler subscribes to
	Handler     string          // the handler's name in the router
	MessageUUID string          // empty for messages of publishers that set none

	// Record is the failure record of the copy or of the discarded message, this failure included. Of the other
	// outcomes it is the record that the message came with; it is zero at a first try.
	Record Record

	Age         time.Duration // since the first failure; 0 where there is none, or its time is forged
	Duration    time.Duration // how long the handler's call took; 0 where it was not called
	Delay       time.Duration // how long the copy is to wait
	Spread      time.Duration // how much longer Jitter can make the shortest Delay; 0: the delay has no jitter
	Tier        backoff.Tier  // the tier that it waits on first
	Destination string        // the queue or topic on which the copy is
	Rule        string        // the name of the rule that has decided
	// the tier that the message had waited on first; of a lane its tier; 0: it came from none, or the handler was not
	// called
	Arrived backoff.Tier
	// how long ago it was due when the handler was called, by the clocks of two hosts; 0 where Arrived is
	Lateness time.Duration
	// why the handler failed. Of Held and GivenBack: why the copy cannot be published, where that is the cause
	Err error

	// Metadata is that of the message, with its failure record. Where DeepCopy is not set, it has what the handler has
	// changed. It must not be changed, nor kept after the call.
	Metadata message.Metadata
}
