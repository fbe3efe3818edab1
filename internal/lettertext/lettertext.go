// Package lettertext has what the stores of dead letters of all backends do in the same way.
package lettertext

import (
	"os"
	"os/user"

	"github.com/ThreeDotsLabs/watermill/message"
	poison "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/tieredretry/watermill-retry/middleware"
)

// UserAtHost is who runs this process.
func UserAtHost() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}

// Texts returns the texts of a failure record that cannot be read as a whole.
func Texts(metadata message.Metadata) middleware.Record {
	return middleware.Record{
		DeadReason: middleware.DeadReason(metadata[middleware.DeadReasonKey]), Reason: metadata[middleware.ReasonKey],
		ErrorType: metadata[middleware.ErrorTypeKey], Topic: metadata[middleware.TopicKey], Handler: metadata[middleware.HandlerKey],
		Subscriber: metadata[poison.PoisonedSubscriberKey], Traceparent: metadata[middleware.TraceparentKey],
		LeftOff: metadata[middleware.LeftOffKey],
	}
}

// maxTraceparent is as long as the middleware writes it.
const maxTraceparent = 128

// Traceparent is what a redrive keeps of a failure record, so that the next attempt leads to the last one before. It is empty for a text
// that no middleware has written. Without the count beside it, it is no record: the message counts as one that never failed.
func Traceparent(record middleware.Record) string {
	if len(record.Traceparent) > maxTraceparent {
		return ""
	}
	return record.Traceparent
}
