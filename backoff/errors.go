package backoff

import (
	"reflect"
	"time"
)

type permanentError struct{ cause error }

func (e *permanentError) Error() string { return e.cause.Error() }
func (e *permanentError) Unwrap() error { return e.cause }
func (*permanentError) Permanent() bool { return true }

// Permanent marks err as an error that no retry can solve: its message is
// dead-lettered at once. The text of err stays the same, and errors.Is and
// errors.As still find err. Permanent(nil) is nil.
//
// An error of your own has the same effect if it has the method
//
//	Permanent() bool
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{cause: err}
}

// IsPermanent reports whether err requests no retry. In a chain or tree of
// errors, the first one with a Permanent method decides, in the order of
// [errors.As]: an outer error can overrule the error that it wraps. A nil
// pointer in the chain is skipped, and its methods are not called.
func IsPermanent(err error) bool {
	marker, ok := find[interface{ Permanent() bool }](err)
	return ok && marker.Permanent()
}

type retryAfterError struct {
	cause error
	delay time.Duration
}

func (e *retryAfterError) Error() string             { return e.cause.Error() }
func (e *retryAfterError) Unwrap() error             { return e.cause }
func (e *retryAfterError) RetryAfter() time.Duration { return e.delay }

// RetryAfter marks err with a requested delay, which replaces the schedule's
// delay before the next retry. The message waits at least as long, on one tier or
// on several in turn. A delay that is longer than MaxDelay of the middleware, 30
// days by default, is cut. The number of retries stays that of the schedule. A
// delay of 0 or less requests nothing. The text of err stays the
// same, and errors.Is and errors.As still find err. RetryAfter(nil, delay) is nil.
//
// An error of your own has the same effect if it has the method
//
//	RetryAfter() time.Duration
func RetryAfter(err error, delay time.Duration) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{cause: err, delay: delay}
}

// RetryAfterDelay returns the requested delay of err. It returns false if err
// requests none, or 0 or less. The first error with a RetryAfter method decides,
// as for [IsPermanent]. The delay is not checked: it can be longer than
// [MaxDelay] and finer than a millisecond.
func RetryAfterDelay(err error) (time.Duration, bool) {
	marker, ok := find[interface{ RetryAfter() time.Duration }](err)
	if !ok {
		return 0, false
	}
	delay := marker.RetryAfter()
	if delay <= 0 {
		return 0, false
	}
	return delay, true
}

// find is errors.As that skips nil pointers. A handler that returns a nil
// *MyError as error is a common mistake, and a call of its methods would panic
// before the message is settled.
func find[T any](err error) (T, bool) {
	var none T
	for err != nil && !isNilPointer(err) {
		if found, ok := err.(T); ok {
			return found, true
		}
		if as, ok := err.(interface{ As(any) bool }); ok {
			var found T
			if as.As(&found) && any(found) != nil && !isNilPointer(found) {
				return found, true
			}
		}

		switch wrapper := err.(type) {
		case interface{ Unwrap() error }:
			err = wrapper.Unwrap()
		case interface{ Unwrap() []error }:
			for _, branch := range wrapper.Unwrap() {
				if found, ok := find[T](branch); ok {
					return found, true
				}
			}
			return none, false
		default:
			return none, false
		}
	}
	return none, false
}

func isNilPointer(v any) bool {
	value := reflect.ValueOf(v)
	return value.Kind() == reflect.Pointer && value.IsNil()
}
