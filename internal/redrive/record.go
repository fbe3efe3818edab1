package redrive

import (
	"os"
	"os/user"

	"github.com/tieredretry/watermill-retry/retry"
)

// userAtHost is who runs this process.
func userAtHost() string {
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

// maxTraceparent is as long as the middleware writes it.
const maxTraceparent = 128

// Traceparent is what a redrive keeps of a failure record, so that the next attempt leads to the last one before. It
// is empty for a text that no middleware has written. Without the count beside it, it is no record: the message
// counts as one that never failed.
func Traceparent(record retry.Record) string {
	if len(record.Traceparent) > maxTraceparent {
		return ""
	}
	return record.Traceparent
}
