package rabbitmq

import (
	"errors"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// Observe attaches observers, such as those of package observe, to all handlers of the connection, also to those that
// were added before, and to its publishers. What an observer does cannot change the outcome of a message. Its errors
// are logged. Call it once for each observer.
//
// Observed.Waiting has the work queues of the handlers that have subscribed, with their tiers and dead letters, and the
// orphans. With Config.Management its numbers are those of the management API, which are up to five seconds old.
// Without it, and where the API takes more than half of the time, the broker is asked for each queue: then only
// messages count that no consumer has, a quorum queue that is busy can show 0, and one call asks for up to 500 queues;
// the next call goes on with the rest. No message is read.
func (c *Connection) Observe(observers ...retry.Observer) {
	for _, o := range observers {
		c.core.observers.Attach(o, retry.Observed{
			System: "rabbitmq", Health: c.Health, Waiting: c.waiting, Logger: c.logger, Closed: c.stopping.Done(),
		})
	}
}

// reportPublished reports the results of a call, which has returned err. Field Result of the report is not set.
func reportPublished(to *middleware.Observers, report retry.Published, err error) {
	if !to.Observes() {
		return
	}
	if err == nil {
		report.Result = retry.PublishConfirmed
		to.Published(report)
		return
	}
	results := resultsOf(err, report.Messages)
	for _, result := range retry.PublishResults() {
		if report.Result, report.Messages = result, results[result]; report.Messages > 0 {
			to.Published(report)
		}
	}
}

// resultsOf counts the messages of a call that has failed by their results. The others of the call have been confirmed.
// Where the call has one error, and that is of a message that could not be sent, none was sent.
func resultsOf(err error, messages int) map[retry.PublishResult]int {
	failures := []error{err}
	if _, one := err.(*publish.Error); !one { // it wraps its cause
		if joined, several := err.(interface{ Unwrap() []error }); several {
			failures = joined.Unwrap()
		}
	}
	results := map[retry.PublishResult]int{}
	for _, failure := range failures {
		results[resultOf(failure)]++
	}
	others := retry.PublishConfirmed
	if len(failures) == 1 && results[retry.PublishRefused]+results[retry.PublishFailed] == 1 {
		others = retry.PublishFailed
	}
	if more := messages - len(failures); more > 0 {
		results[others] += more
	}
	return results
}

func resultOf(err error) retry.PublishResult {
	var failure *publish.Error
	switch {
	case errors.Is(err, publish.ErrUnroutable):
		return retry.PublishReturned
	case errors.Is(err, publish.ErrNacked):
		return retry.PublishNacked
	case errors.Is(err, publish.ErrRefused):
		return retry.PublishRefused
	case errors.As(err, &failure) && failure.Kind() == retry.KindUnconfirmed:
		return retry.PublishUnconfirmed
	default:
		return retry.PublishFailed
	}
}
