// Package backoff says when a failed message is tried again.
//
// A [Schedule] is the list of delays before each retry; when it is used up the
// message is dead-lettered. Build one with [Constant], [Linear] or
// [Exponential], write it out as a literal, or read it from configuration with
// [ParseSchedule]:
//
//	backoff.Exponential(time.Second, 5, 4)      // 1s 5s 25s 2m5s
//	backoff.ParseSchedule("1s 5s 25s*3 10m")    // six retries
//
// Each distinct delay of a schedule is a [Tier]: one waiting queue on the
// broker, named by one word. Delays are whole milliseconds between [MinDelay]
// and [MaxDelay], because that is what a queue's TTL can be.
//
// The constructors return no error, so that a schedule can be written inside a
// configuration literal. What is wrong with one, they keep, and
// [Schedule.Validate] reports it.
//
// An error can carry a wish of its own: [Permanent] asks for no retry at all,
// [RetryAfter] for a certain delay. Both match by method, so the errors of your
// own domain can have a wish without importing this package.
package backoff
