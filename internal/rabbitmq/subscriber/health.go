package subscriber

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Health is what a Connection and its subscriptions do at one moment.
type Health struct {
	Connected bool
	Blocked   bool      // the broker has blocked the connection, because of an alarm
	Since     time.Time // since when it is connected, or is not

	// Reconnects is how often the connection was opened again after it was lost.
	Reconnects int

	// LastError is why the connection was lost, or could not be opened again, the last time. Nil: never.
	LastError   error
	LastErrorAt time.Time `json:",omitzero"`

	// Subscriptions are the calls of Subscribe that have not ended, in their order.
	Subscriptions []SubscriptionHealth
}

// SubscriptionHealth is what one Subscribe call does at one moment.
type SubscriptionHealth struct {
	Name         string // Config.Name
	Topic, Queue string
	Consuming    bool      // the broker has a consumer for it
	Paused       bool      // Config.Limits has set its limit to 0: it has no consumer, or is about to have none
	Since        time.Time // since when it is consuming, or is not
	InFlight     int       // messages handed out and not settled; those whose nack is paced are among them
	Concurrency  int       // Config.Concurrency

	// Deliveries is how many messages the broker has delivered, Redeliveries how many of them it had delivered before, and Reconnects
	// how often the consumer began again after it had ended by itself.
	Deliveries, Redeliveries, Reconnects uint64

	// LastError is why the consumer ended, or why it could not be declared or begun again, the last time. Nil: never.
	LastError   error
	LastErrorAt time.Time `json:",omitzero"`
}

// Ready returns nil when the connection is open and every subscription is consuming or paused. Otherwise it returns an error with all that
// is not, for a readiness probe.
func (h Health) Ready() error {
	var faults []error
	if !h.Connected {
		faults = append(faults, because(fmt.Sprintf("not connected since %s", h.Since.Format(time.RFC3339)), h.LastError))
	}
	for _, s := range h.Subscriptions {
		if !s.Consuming && !s.Paused {
			what := fmt.Sprintf("topic %q: not consuming queue %q since %s", s.Topic, s.Queue, s.Since.Format(time.RFC3339))
			faults = append(faults, because(what, s.LastError))
		}
	}
	return errors.Join(faults...)
}

func because(what string, cause error) error {
	if cause == nil {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %w", what, cause)
}

// Health returns the state of the connection and of all its subscriptions. It does not wait for the broker.
func (c *Connection) Health() Health {
	state := c.state.Load()
	h := Health{Connected: state.current != nil, Since: state.since, Reconnects: int(c.reconnects.Load())}
	h.Blocked = h.Connected && state.current.Blocked.Load()
	h.LastErrorAt, h.LastError = c.failed.get()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.subscriptions {
		h.Subscriptions = append(h.Subscriptions, s.health())
	}
	return h
}

// A failure is the last error and its time.
type failure struct {
	mu  sync.Mutex
	err error
	at  time.Time
}

func (f *failure) set(err error) {
	f.mu.Lock()
	f.err, f.at = err, time.Now()
	f.mu.Unlock()
}

func (f *failure) get() (at time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at, f.err
}

// MarshalJSON implements json.Marshaler: the error is a text, and left out where there is none.
func (h Health) MarshalJSON() ([]byte, error) {
	type plain Health
	return json.Marshal(struct {
		plain
		LastError string `json:",omitzero"`
	}{plain(h), textOf(h.LastError)})
}

// MarshalJSON implements json.Marshaler: the error is a text, and left out where there is none.
func (s SubscriptionHealth) MarshalJSON() ([]byte, error) {
	type plain SubscriptionHealth
	return json.Marshal(struct {
		plain
		LastError string `json:",omitzero"`
	}{plain(s), textOf(s.LastError)})
}

// textOf returns the text of an error, and nothing for none.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
