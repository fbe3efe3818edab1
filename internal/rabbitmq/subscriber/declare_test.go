package subscriber

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A declarer notes what is declared and bound, since when it may be gone, and fails.
type declarer struct {
	app
	calls           []string
	lostAt          time.Time
	bound, declared error
}

func (d *declarer) Bind(of *Declaration, _ string) error {
	d.calls, d.lostAt = append(d.calls, "bind"), of.LostAt
	return d.bound
}

func (d *declarer) Declare(of *Declaration, _ string) error {
	d.calls, d.lostAt = append(d.calls, "declare"), of.LostAt
	return d.declared
}

func (d *declarer) MayBeQuorum(string) bool { return true }

// consumed is the channel of a session whose consumers get nothing.
type consumed struct {
	channel
	deliveries chan amqp091.Delivery
}

func (*consumed) Qos(int, int, bool) error { return nil }

func (c *consumed) Consume(_, _ string, _, _, _, _ bool, _ amqp091.Table) (<-chan amqp091.Delivery, error) {
	c.deliveries = make(chan amqp091.Delivery)
	return c.deliveries, nil
}

func (c *consumed) Cancel(string, bool) error {
	close(c.deliveries)
	return nil
}

// Another client can replace a queue while the handler is paused. So it is bound after a pause, too. Another limit is no
// pause: the steps of a breaker do not each bind it.
func TestAQueueIsBoundAfterAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &declarer{}
		l := newLineOf(t, d, Config{Concurrency: 4}, newFakeChannel(8))
		defer l.close()
		n := l.session
		n.connection = &wire.Connection{Client: &amqp091.Connection{}}
		n.channel = &consumed{deliveries: l.deliveries}
		ended := make(chan error, 1)
		go func() { ended <- l.keep(n) }()
		calls := func() []string {
			time.Sleep(time.Minute)
			synctest.Wait()
			calls := d.calls
			d.calls = nil
			return calls
		}
		assert.Equal(t, []string{"bind"}, calls())
		assert.Zero(t, d.lostAt, "what was declared on the connection is there")

		paused := time.Now()
		l.Limit(0)
		assert.Empty(t, calls(), "there is no consumer")
		l.Limit(gate.None)
		assert.Equal(t, []string{"bind"}, calls())
		assert.Equal(t, paused, d.lostAt, "a bind of another handler serves if it is younger than the pause")

		for _, limit := range []int{1, 2, gate.None} {
			l.Limit(limit)
			assert.Empty(t, calls())
		}

		d.bound = errors.New("no exchange")
		l.Limit(0)
		assert.Empty(t, calls(), "there is no consumer")
		l.Limit(2)
		assert.Equal(t, []string{"bind", "declare"}, calls())

		d.declared = errors.New("refused")
		l.Limit(0)
		assert.Empty(t, calls(), "there is no consumer")
		l.Limit(gate.None)
		assert.Equal(t, []string{"bind", "declare"}, calls())
		assert.ErrorIs(t, <-ended, d.declared)

		n.again, n.before, n.bound = true, nil, false // as a session after a loss
		l.bind(n)
		assert.Equal(t, []string{"declare"}, calls())
	})
}
