package backoff_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
)

// domainError is an app's own error with both methods; they panic on a nil pointer.
type domainError struct {
	permanent bool
	delay     time.Duration
	cause     error
}

func (e *domainError) Error() string             { return "domain error" }
func (e *domainError) Unwrap() error             { return e.cause }
func (e *domainError) Permanent() bool           { return e.permanent }
func (e *domainError) RetryAfter() time.Duration { return e.delay }

// adapter has the methods only through errors.As.
type adapter struct{ marker *domainError }

func (a adapter) Error() string { return "adapter" }
func (a adapter) As(target any) bool {
	switch t := target.(type) {
	case *interface{ Permanent() bool }:
		*t = a.marker
	case *interface{ RetryAfter() time.Duration }:
		*t = a.marker
	default:
		return false
	}
	return true
}

func TestIsPermanent(t *testing.T) {
	var nilError *domainError
	require.NoError(t, errors.Join(backoff.Permanent(nil), backoff.RetryAfter(nil, time.Second)), "no error stays none")

	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"nil":                      {nil, false},
		"plain":                    {io.EOF, false},
		"marked":                   {backoff.Permanent(io.EOF), true},
		"wrapped":                  {fmt.Errorf("bill: %w", backoff.Permanent(io.EOF)), true},
		"joined":                   {errors.Join(io.EOF, backoff.Permanent(io.EOF)), true},
		"under the other mark":     {backoff.RetryAfter(backoff.Permanent(io.EOF), time.Second), true},
		"only the other mark":      {backoff.RetryAfter(io.EOF, time.Second), false},
		"domain error":             {&domainError{permanent: true}, true},
		"domain error returns no":  {&domainError{}, false},
		"outer overrules inner":    {&domainError{cause: backoff.Permanent(io.EOF)}, false},
		"by As":                    {adapter{&domainError{permanent: true}}, true},
		"nil by As":                {adapter{nil}, false},
		"nil pointer":              {nilError, false},
		"nil pointer wrapped":      {fmt.Errorf("bill: %w", nilError), false},
		"nil pointer, then marked": {errors.Join(nilError, backoff.Permanent(io.EOF)), true},
		"nil pointer marked":       {backoff.Permanent(nilError), true},
		"wraps nothing":            {fmt.Errorf("bill: %w", error(nil)), false},
	} {
		assert.Equal(t, tt.want, backoff.IsPermanent(tt.err), name)
	}
}

func TestRetryAfterDelay(t *testing.T) {
	var nilError *domainError

	for name, tt := range map[string]struct {
		err  error
		want time.Duration
		ok   bool
	}{
		"nil":                   {nil, 0, false},
		"plain":                 {io.EOF, 0, false},
		"marked":                {backoff.RetryAfter(io.EOF, time.Second), time.Second, true},
		"wrapped":               {fmt.Errorf("bill: %w", backoff.RetryAfter(io.EOF, time.Second)), time.Second, true},
		"joined":                {errors.Join(io.EOF, backoff.RetryAfter(io.EOF, time.Second)), time.Second, true},
		"outer overrules inner": {backoff.RetryAfter(backoff.RetryAfter(io.EOF, time.Hour), time.Second), time.Second, true},
		"outer requests none":   {backoff.RetryAfter(backoff.RetryAfter(io.EOF, time.Hour), 0), 0, false},
		"domain error":          {&domainError{delay: time.Minute}, time.Minute, true},
		"by As":                 {adapter{&domainError{delay: time.Minute}}, time.Minute, true},
		"zero":                  {&domainError{}, 0, false},
		"negative":              {backoff.RetryAfter(io.EOF, -time.Second), 0, false},
		"as long as can be":     {backoff.RetryAfter(io.EOF, math.MaxInt64), math.MaxInt64, true},
		"nil pointer":           {nilError, 0, false},
		"nil pointer wrapped":   {fmt.Errorf("bill: %w", nilError), 0, false},
	} {
		delay, ok := backoff.RetryAfterDelay(tt.err)
		assert.Equal(t, tt.want, delay, name)
		assert.Equal(t, tt.ok, ok, name)
	}
}
