package natsretry

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// freshFor is how long a reading of the server's clock is used without a new one.
	freshFor = 10 * time.Second

	// usableFor is how long it is used while the server does not answer.
	usableFor = time.Minute

	// drift is how much faster the clock of the server may run than that of this host: clocks that are corrected differ
	// by at most 0.05% each.
	drift = 1000

	// jump is by how much the clocks of this host may differ, before one of them was set or has stood still.
	jump = 100 * time.Millisecond

	clockTimeout = 5 * time.Second
	samples      = 3
	goodSample   = 5 * time.Millisecond
)

// clock is the clock of the server that leads the stream of the retries. This host's clock counts the time since it was
// read, and decides nothing else.
type clock struct {
	read func(context.Context) (time.Time, error)

	mu      sync.Mutex
	at      time.Time // the time of this host before the server was asked
	server  time.Time
	reading chan struct{} // closed when the reading that runs has ended; nil: none runs
	err     error         // why the last reading failed
}

func newClock(stream func(context.Context) (*jetstream.StreamInfo, error)) *clock {
	return &clock{read: func(ctx context.Context) (time.Time, error) {
		info, err := stream(ctx)
		if err != nil {
			return time.Time{}, err
		}
		return info.TimeStamp, nil
	}}
}

// now returns the latest time that it can be on the server.
func (c *clock) now(ctx context.Context) (time.Time, error) {
	c.mu.Lock()
	if now, age := c.latest(); age < freshFor {
		c.mu.Unlock()
		return now, nil
	}
	if c.reading == nil {
		c.reading = make(chan struct{})
		go c.update()
	}
	now, age := c.latest()
	reading := c.reading
	c.mu.Unlock()
	if age < usableFor/2 { // the next publish has the new reading
		return now, nil
	}
	select {
	case <-reading:
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, age := c.latest(); age < usableFor {
		return now, nil
	}
	return time.Time{}, fmt.Errorf("cannot read the clock of the NATS server: %w", c.err)
}

// latest returns the latest time that it can be on the server, and how old the reading is.
func (c *clock) latest() (time.Time, time.Duration) {
	now := time.Now()
	age := now.Sub(c.at)
	wall := now.Round(0).Sub(c.at.Round(0))
	if c.at.IsZero() || wall-age > jump || age-wall > jump { // this host was suspended, or its clock was set
		return time.Time{}, usableFor
	}
	return c.server.Add(age + age/drift), age
}

// update reads the clock several times, and keeps the reading that was answered soonest: the answer may have been
// under way for all of that time.
func (c *clock) update() {
	ctx, cancel := context.WithTimeout(context.Background(), clockTimeout)
	defer cancel()
	var at, server time.Time
	var err error
	best := clockTimeout
	for tries := 0; tries < samples && best > goodSample; tries++ {
		began := time.Now()
		var read time.Time
		if read, err = c.read(ctx); err != nil {
			break
		}
		if took := time.Since(began); took < best {
			best, at, server = took, began, read
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !at.IsZero() {
		c.at, c.server = at, server
	}
	c.err = err
	close(c.reading)
	c.reading = nil
}
