package publisher

import (
	"encoding/json"
	"fmt"
	"time"
)

// Health is what a Connection does at one moment. Its fields are those of package subscriber's Health.
type Health struct {
	Connected bool
	Blocked   bool      // the broker has blocked the connection, because of an alarm: Publish returns ErrBlocked
	Since     time.Time // since when it is connected, or is not

	// Reconnects is how often the connection was opened again after it was lost.
	Reconnects int

	// LastError is why the connection was lost, or could not be opened again, the last time. Nil: never.
	LastError   error
	LastErrorAt time.Time `json:",omitzero"`
}

// Ready returns nil when the connection is open, and else an error with the reason, for a readiness probe. A blocked connection is
// open: an alarm concerns all instances of an app.
func (h Health) Ready() error {
	if h.Connected {
		return nil
	}
	since := h.Since.Format(time.RFC3339)
	if h.LastError == nil {
		return fmt.Errorf("not connected since %s", since)
	}
	return fmt.Errorf("not connected since %s: %w", since, h.LastError)
}

// Health returns the state of the connection. It does not wait for the broker.
func (c *Connection) Health() Health {
	state := c.link.state.Load()
	return Health{
		Connected:   state.connection != nil,
		Blocked:     state.connection != nil && state.connection.Blocked.Load(),
		Since:       state.since,
		Reconnects:  int(c.link.reconnects.Load()),
		LastError:   state.failed,
		LastErrorAt: state.failedAt,
	}
}

// MarshalJSON implements json.Marshaler: the error is a text, and left out where there is none.
func (h Health) MarshalJSON() ([]byte, error) {
	type plain Health
	return json.Marshal(struct {
		plain
		LastError string `json:",omitzero"`
	}{plain(h), textOf(h.LastError)})
}

// textOf returns the text of an error, and nothing for none.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
