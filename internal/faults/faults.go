// Package faults names what has a fault: each line of an error has the whole path of its field. It also collects the
// faults of the handlers of a Connection. It is internal because an app gets the joined error.
package faults

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Handlers are the faults of all handlers of a Connection. The router subscribes its handlers one after the other, in
// no order: without them, its Run would return the faults of one handler, while others consume already. The zero value
// is ready for use. It is safe for concurrent use.
type Handlers struct {
	mu     sync.Mutex
	faults []error
}

// Add adds a fault of OfHandler.
func (h *Handlers) Add(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, err)
}

// AddNil adds a fault for a handler without a function: each of its messages would fail with a nil pointer, and end
// as a dead letter.
func (h *Handlers) AddNil(name string, isNil bool) {
	if isNil {
		h.Add(OfHandler(name, errors.New("its function is nil: pass the function that handles its messages")))
	}
}

// All returns all faults, joined, or nil.
func (h *Handlers) All() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.faults...)
}

// CheckRouter panics where a handler has no router: the functions that add one return no error.
func CheckRouter(name string, isNil bool) {
	if isNil {
		panic(fmt.Sprintf("handler %q: its router is nil: pass the router that message.NewRouter has returned", name))
	}
}

// If returns an error, or nil where nothing is wrong.
func If(wrong bool, format string, args ...any) error {
	if !wrong {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// partError has its prefix in each line: the faults of several parts are joined.
type partError struct {
	prefix string
	err    error
}

// Of returns the error with the name of what has the fault in each of its lines. A nil error stays nil.
func Of(part string, err error) error { return within(part+": ", err) }

// In returns the error of a struct with the path of the struct in each of its lines, which begin with a field: within
// "Breaker", "Least is -1" is "Breaker.Least is -1". A nil error stays nil.
func In(path string, err error) error { return within(path+".", err) }

func within(prefix string, err error) error {
	if err == nil {
		return nil
	}
	return &partError{prefix, err}
}

// OfHandler returns the error with the name of the handler in each of its lines.
func OfHandler(name string, err error) error { return Of(fmt.Sprintf("handler %q", name), err) }

func (e *partError) Error() string {
	return e.prefix + strings.ReplaceAll(e.err.Error(), "\n", "\n"+e.prefix)
}

func (e *partError) Unwrap() error { return e.err }
