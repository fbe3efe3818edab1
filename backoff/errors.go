package backoff

import (
	"reflect"
	"time"
)

type permanentError struct{ cause error }

func (e *permanentError) Error() string { return e.cause.Error() }
func (e *permanentError) Unwrap() error { return e.cause }
func (*permanentError) Permanent() bool { return true }

// Permanent marks err as one that no retry can mend, so that its message is
// dead-lettered at once. The text of err stays the same and it can be unwrapped.
// Permanent(nil) is nil.
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

// IsPermanent tells whether err asks for no retry. In a chain or tree of errors
// the first one with a Permanent method decides, in the order of [errors.As]: an
// outer error can overrule what it wraps. A nil pointer in the chain is passed
// over, and its methods are not called.
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

// RetryAfter marks err with the delay to wait before the next retry, in place of
// the schedule's. The message waits on tiers, so up to the next tier longer. It grants no retry beyond the schedule's number. A delay of 0
// or less is no wish. The text of err stays the same and it can be unwrapped.
// RetryAfter(nil, delay) is nil.
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

// RetryAfterDelay returns the delay that err asks for, and false where it asks
// for none or for 0 or less. The first error with a RetryAfter method decides, as
// for [IsPermanent]. The delay is handed on as it is: it may be longer than
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

// find is errors.As that passes over nil pointers: a handler that returns a nil
// *MyError as error is a common slip, and calling its methods would panic where
// the message is to be settled.
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
