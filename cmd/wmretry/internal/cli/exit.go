package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tieredretry/watermill-retry/letters"
)

const (
	codeDone        = 0
	codeFailed      = 1
	codeDrift       = 2
	codeBlind       = 2 // of doctor
	codeRedead      = 3
	codeNothing     = 4
	codeUsage       = 64
	codeInterrupted = 130
)

func (e *env) exitCodes() string {
	var text strings.Builder
	for _, c := range []struct {
		code    int
		meaning string
	}{
		{codeDone, "done"},
		{codeFailed, "failed; the message says what to do. doctor: findings"},
		{codeDrift, e.ofRabbitMQ("the topology differs (topology plan, topology apply). ") + "doctor: it cannot look"},
		{codeRedead, "stopped, because redriven letters died again"},
		{codeNothing, "no letter matches the filters or ids"},
		{codeUsage, "wrong command, argument or flag"},
		{codeInterrupted, "interrupted by Ctrl-C; a summary is printed"},
	} {
		_, _ = fmt.Fprintf(&text, "  %3d  %s\n", c.code, c.meaning)
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// exitError ends the command with a code. Where err is nil, everything is printed already.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit returns an error that ends the command with a code.
func exit(code int, err error) error { return &exitError{code, err} }

// usage returns an error about an argument or flag.
func usage(format string, args ...any) error { return exit(codeUsage, fmt.Errorf(format, args...)) }

func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return codeDone
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, letters.ErrRedead):
		return codeRedead
	}
	return codeFailed
}
