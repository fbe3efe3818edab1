package broker

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

const (
	look  = 5 * time.Second  // between two looks at the broker, whose figures are this old
	quiet = 30 * time.Second // after so long without a change on the broker, an event does not come any more
	most  = 5 * time.Minute  // beyond the time of the test itself
)

// A Patience ends the wait for an event. On a busy machine an event can take minutes, but queues are declared and
// messages move meanwhile. So the wait ends when its time is over and nothing moves on the broker.
type Patience struct {
	// Check fires when Over is to be asked.
	Check *time.Ticker

	began       time.Time
	limit       time.Duration
	state       string
	last        time.Time // when the state was another one
	stateOfNode func() string
}

// NewPatience begins a wait. Stop its Check at the end.
func NewPatience(within time.Duration) *Patience {
	return newPatience(within, stateOfNode)
}

func newPatience(within time.Duration, stateOfNode func() string) *Patience {
	return &Patience{Check: time.NewTicker(within), limit: within + most, began: time.Now(), stateOfNode: stateOfNode}
}

// Over reports whether to give up.
func (p *Patience) Over() bool {
	p.Check.Reset(look)
	if state := p.stateOfNode(); p.last.IsZero() || state != p.state {
		p.state, p.last = state, time.Now()
	}
	return time.Since(p.last) >= quiet || time.Since(p.began) >= p.limit
}

// stateOfNode returns what changes while clients work with the broker at AMQP_URL, or nothing where it does not answer.
func stateOfNode() string {
	client, err := Client(os.Getenv("AMQP_URL"), os.Getenv("AMQP_MANAGEMENT_URL"))
	if err != nil {
		return ""
	}
	client.SetTimeout(quiet)
	seen, err := client.Overview()
	if err != nil {
		return ""
	}
	return fmt.Sprint(seen.ObjectTotals, seen.MessageStats.Publish, seen.MessageStats.DeliverGet, seen.MessageStats.Ack)
}

// Declare declares something, on a channel of its own. A busy broker that cannot start a quorum queue in its own time
// answers 541. That is the state of the broker: the declaration is repeated.
func Declare(t testing.TB, declare func(*amqp091.Channel) error) {
	t.Helper()
	var err error
	Eventually(t, time.Minute, func() bool {
		err = declare(Channel(t))
		var refusal *amqp091.Error
		return !errors.As(err, &refusal) || refusal.Code != amqp091.InternalError
	}, "the broker declares without an internal error")
	require.NoError(t, err)
}

// Receive waits for a value, or for the close of the channel.
func Receive[T any](t testing.TB, from <-chan T, what string, args ...any) (value T) {
	t.Helper()
	patience := NewPatience(time.Minute)
	defer patience.Check.Stop()
	for {
		select {
		case value = <-from:
			return value
		case <-patience.Check.C:
			require.Falsef(t, patience.Over(), "it did not happen, and nothing moves on the broker: "+what, args...)
		}
	}
}

// Eventually waits for an event.
func Eventually(t testing.TB, within time.Duration, happened func() bool, what string, args ...any) {
	t.Helper()
	patience := NewPatience(within)
	defer patience.Check.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-patience.Check.C:
			require.Falsef(t, patience.Over(), "it did not happen, and nothing moves on the broker: "+what, args...)
		case <-tick.C:
		}
	}
}
