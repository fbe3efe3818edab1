// Package backoff defines when a failed message is retried.
//
// A [Schedule] is the list of delays before each retry. After the last retry
// the message is dead-lettered. Build a schedule with [Constant], [Linear] or
// [Exponential], write it as a literal, or read it from configuration with
// [ParseSchedule]:
//
//	backoff.Exponential(time.Second, 5, 4)      // 1s 5s 25s 125s
//	backoff.ParseSchedule("1s 5s 25s*3 10m")    // six retries
//
// Each distinct delay of a schedule is a [Tier]: one queue (or topic) on which
// messages wait, named by one word. Delays are whole milliseconds up
// to [MaxDelay], because these are the values that RabbitMQ accepts
// for a queue's TTL.
//
// The constructors return no error, so that a schedule can be written inside a
// configuration literal. They keep invalid values, and [Schedule.Validate]
// reports them.
//
// A handler's error can change what happens: [Permanent] requests no retry,
// [RetryAfter] requests a certain delay. Both are recognized by method, so your
// own error types can have the same effect without importing this package.
//
// All functions are safe for concurrent use; none changes a schedule in place,
// except [Schedule.UnmarshalText].
package backoff
