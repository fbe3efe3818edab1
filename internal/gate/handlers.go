package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Handlers has the gates of the handlers of one connection. The zero value is ready for use. It is safe for concurrent
// use.
type Handlers struct {
	mu    sync.Mutex
	gates map[string]*Gate
}

// Add returns the gate of a handler. Handlers of one name share the first one's gate. One that is added again, after
// its subscriptions have ended, has another one, which is paused if an operator has paused the handler.
func (h *Handlers) Add(name string, concurrency int) *Gate {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gates == nil {
		h.gates = map[string]*Gate{}
	}
	before := h.gates[name]
	if before != nil && !before.Ended() {
		return before
	}
	h.gates[name] = New(concurrency)
	if before != nil && slices.Contains(before.Paused(), Operator) {
		h.gates[name].Set(Operator, 0)
	}
	return h.gates[name]
}

// Pause makes a handler take no new messages, for the reason Operator. It returns an error for an unknown name.
func (h *Handlers) Pause(name string) error { return h.set(name, 0) }

// Resume ends a Pause. It returns an error for an unknown name.
func (h *Handlers) Resume(name string) error { return h.set(name, None) }

func (h *Handlers) set(name string, limit int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gates[name]
	if g == nil {
		return h.unknown(name)
	}
	g.Set(Operator, limit)
	return nil
}

func (h *Handlers) unknown(name string) error {
	if len(h.gates) == 0 {
		return fmt.Errorf("no handler is named %q: the connection has no handlers yet", name)
	}
	var names []string
	for _, known := range slices.Sorted(maps.Keys(h.gates)) {
		names = append(names, strconv.Quote(known))
	}
	return errors.New("no handler is named " + strconv.Quote(name) + ": the handlers are " + strings.Join(names, ", "))
}

// Find returns the gate of a handler; nil: there is none.
func (h *Handlers) Find(name string) *Gate {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gates[name]
}
