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

// wish is a domain error that opts in; its methods panic on a nil pointer.
type wish struct {
	permanent bool
	delay     time.Duration
	cause     error
}

func (w *wish) Error() string             { return "wish" }
func (w *wish) Unwrap() error             { return w.cause }
func (w *wish) Permanent() bool           { return w.permanent }
func (w *wish) RetryAfter() time.Duration { return w.delay }

// adapter has a wish only through errors.As.
type adapter struct{ marker *wish }

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

func TestMarkersOfNil(t *testing.T) {
	t.Parallel()
	require.NoError(t, backoff.Permanent(nil))
	require.NoError(t, backoff.RetryAfter(nil, time.Second))
}

func TestMarkersKeepTheCause(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("reading: %w", io.ErrUnexpectedEOF)

	for name, err := range map[string]error{
		"Permanent":  backoff.Permanent(cause),
		"RetryAfter": backoff.RetryAfter(cause, time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			assert.Equal(t, cause, errors.Unwrap(err))
			assert.EqualError(t, err, cause.Error())
		})
	}
}

func TestIsPermanent(t *testing.T) {
	t.Parallel()
	var nilWish *wish

	tests := map[string]struct {
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
		"domain error":             {&wish{permanent: true}, true},
		"domain error says no":     {&wish{}, false},
		"outer overrules inner":    {&wish{cause: backoff.Permanent(io.EOF)}, false},
		"by As":                    {adapter{&wish{permanent: true}}, true},
		"nil by As":                {adapter{nil}, false},
		"nil pointer":              {nilWish, false},
		"nil pointer wrapped":      {fmt.Errorf("bill: %w", nilWish), false},
		"nil pointer, then marked": {errors.Join(nilWish, backoff.Permanent(io.EOF)), true},
		"nil pointer marked":       {backoff.Permanent(nilWish), true},
		"wraps nothing":            {fmt.Errorf("bill: %w", error(nil)), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tt.want, backoff.IsPermanent(tt.err))
		})
	}
}

func TestRetryAfterDelay(t *testing.T) {
	t.Parallel()
	var nilWish *wish

	tests := map[string]struct {
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
		"outer without a wish":  {backoff.RetryAfter(backoff.RetryAfter(io.EOF, time.Hour), 0), 0, false},
		"domain error":          {&wish{delay: time.Minute}, time.Minute, true},
		"by As":                 {adapter{&wish{delay: time.Minute}}, time.Minute, true},
		"zero":                  {&wish{}, 0, false},
		"negative":              {backoff.RetryAfter(io.EOF, -time.Second), 0, false},
		"as long as can be":     {backoff.RetryAfter(io.EOF, math.MaxInt64), math.MaxInt64, true},
		"nil pointer":           {nilWish, 0, false},
		"nil pointer wrapped":   {fmt.Errorf("bill: %w", nilWish), 0, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			delay, ok := backoff.RetryAfterDelay(tt.err)
			assert.Equal(t, tt.want, delay)
			assert.Equal(t, tt.ok, ok)
		})
	}
}
