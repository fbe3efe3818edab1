package door

import (
	"errors"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// Observe implements retry.Connection.
func (c *Connection) Observe(observers ...retry.Observer) {
	for _, o := range observers {
		c.core.observers.Attach(o, backend.Observed{
			System: "rabbitmq", Health: c.Health, Waiting: c.lookout.waiting, Logger: c.logger, Closed: c.stopping.Done(),
		})
	}
}

// reportPublished reports the results of a call, which has returned err. Field Result of the report is not set.
func reportPublished(to *backend.Observers, report backend.Published, err error) {
	if !to.Observes() {
		return
	}
	if err == nil {
		report.Result = backend.PublishConfirmed
		to.Published(report)
		return
	}
	results := resultsOf(err, report.Messages)
	for _, result := range [...]backend.PublishResult{
		backend.PublishConfirmed, backend.PublishReturned, backend.PublishNacked, backend.PublishRefused,
		backend.PublishUnconfirmed, backend.PublishFailed,
	} {
		if report.Result, report.Messages = result, results[result]; report.Messages > 0 {
			to.Published(report)
		}
	}
}

// resultsOf counts the messages of a call that has failed by their results. The others of the call have been confirmed.
// Where the call has one error, and that is of a message that could not be sent, none was sent.
func resultsOf(err error, messages int) map[backend.PublishResult]int {
	failures := []error{err}
	if _, one := err.(*failure.Error); !one { // it wraps its cause
		if joined, several := err.(interface{ Unwrap() []error }); several {
			failures = joined.Unwrap()
		}
	}
	results := map[backend.PublishResult]int{}
	for _, failure := range failures {
		results[resultOf(failure)]++
	}
	others := backend.PublishConfirmed
	if len(failures) == 1 && results[backend.PublishRefused]+results[backend.PublishFailed] == 1 {
		others = backend.PublishFailed
	}
	if more := messages - len(failures); more > 0 {
		results[others] += more
	}
	return results
}

func resultOf(err error) backend.PublishResult {
	switch {
	case errors.Is(err, publish.ErrUnroutable):
		return backend.PublishReturned
	case errors.Is(err, publish.ErrNacked):
		return backend.PublishNacked
	case errors.Is(err, publish.ErrRefused):
		return backend.PublishRefused
	case unpublished.KindOf(err) == unpublished.Unconfirmed:
		return backend.PublishUnconfirmed
	default:
		return backend.PublishFailed
	}
}
