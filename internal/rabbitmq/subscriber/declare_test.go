package subscriber

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A declarer notes what is declared and bound, since when it may be gone, and fails.
type declarer struct {
	app
	calls           []string
	lostAt          time.Time
	bound, declared error
	refuses         int // the number of the call of Declare that is refused; 0: none
}

func (d *declarer) Bind(of *Declaration, _ string) error {
	d.calls, d.lostAt = append(d.calls, "bind"), of.LostAt
	return d.bound
}

func (d *declarer) Declare(of *Declaration, _ string) error {
	d.calls, d.lostAt = append(d.calls, "declare"), of.LostAt
	if d.refuses--; d.refuses == 0 {
		return errors.New("refused")
	}
	return d.declared
}

func (d *declarer) MayBeQuorum(string) bool { return true }

// begun is a kind whose sessions have begun.
type begun struct {
	*plain
	scene *scene
	err   error // once
}

func (b *begun) Begin(*wire.Connection) (Session, error) {
	if b.Places.Limit() == 0 {
		return nil, nil
	}
	if err := b.err; err != nil {
		b.err = nil
		return nil, err
	}
	b.scene.account = channeltest.New(8)
	return b.scene.newSession(), nil
}

// Another client can replace a queue before it is consumed, also while the handler is paused. Another limit is no
// pause: the steps of a breaker do not each bind it.
func TestAQueueIsBoundWhenItIsConsumed(t *testing.T) {
	t.Parallel()
	paused, lost := time.Now().Add(-time.Minute), time.Now().Add(-time.Hour)
	current := newConnection()
	gone := &amqp091.Error{Code: amqp091.NotFound}
	for name, row := range map[string]struct {
		before          func(l *Loop)
		consumed        error
		bound, declared error
		want            []string
		lostAt          time.Time // of the last call
		refused         bool
	}{
		"the first session": {want: []string{"declare", "bind"}},
		"after a pause": { // a bind of another handler serves if it is younger than the pause
			before: func(l *Loop) { l.unconsumed = paused }, want: []string{"declare", "bind"}, lostAt: paused},
		"another limit": {
			before: func(l *Loop) { l.steps, l.declared = true, current }, want: []string{"declare"}},
		"another limit, and the queue was deleted": {
			before:   func(l *Loop) { l.steps, l.declared = true, current },
			consumed: gone, want: []string{"declare", "declare", "bind"}},
		"another limit on another connection": {
			before: func(l *Loop) { l.steps, l.declared = true, &wire.Connection{} }, want: []string{"declare", "bind"}},
		"another limit, and a pause": {
			before: func(l *Loop) {
				l.steps, l.declared = true, current
				l.Limit(0)
				_, _ = l.open(l.Stopping, current)
				l.Limit(4)
			}, want: []string{"declare", "declare", "bind"}},
		"after a loss on the connection": {
			before: func(l *Loop) { l.lost.connection, l.lost.at = current, lost },
			want:   []string{"declare", "declare"}, lostAt: time.Now()},
		"after a loss on another one": {
			before: func(l *Loop) { l.lost.connection, l.lost.at = &wire.Connection{}, lost },
			want:   []string{"declare", "bind"}},
		"no exchange": {bound: errors.New("no exchange"), want: []string{"declare", "bind", "declare"},
			lostAt: time.Now()},
		"the queue was deleted": {consumed: gone, want: []string{"declare", "declare", "bind"}},
		"it is paused":          {before: func(l *Loop) { l.Limit(0) }, want: []string{"declare"}},
		"refused":               {declared: errors.New("refused"), want: []string{"declare"}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := &declarer{bound: row.bound, declared: row.declared}
			inScene(t, d, Config{Concurrency: 4}, func(t *testing.T, l *scene) {
				loop := l.plain.Loop
				loop.kind = &begun{l.plain, l, row.consumed}
				if row.before != nil {
					row.before(loop)
				}
				n, err := loop.open(t.Context(), current)
				assert.Equal(t, row.want, d.calls)
				if row.lostAt.After(paused) {
					assert.NotZero(t, d.lostAt)
				} else {
					assert.Equal(t, row.lostAt, d.lostAt)
				}
				if row.refused {
					assert.ErrorIs(t, err, row.declared)
				} else {
					require.NoError(t, err)
				}
				if n != nil {
					n.Abandon()
				}
			})
		})
	}
}

// A session whose queue cannot be bound is closed: the broker takes back what it has sent.
func TestAQueueThatCannotBeBoundIsNotConsumed(t *testing.T) {
	d := &declarer{bound: errors.New("no exchange")}
	inScene(t, d, Config{Concurrency: 4}, func(t *testing.T, l *scene) {
		loop := l.plain.Loop
		began := &begun{l.plain, l, nil}
		loop.kind = began
		d.refuses = 2
		current := newConnection()
		n, err := loop.open(t.Context(), current)
		assert.ErrorContains(t, err, "refused")
		assert.Nil(t, n)
		<-l.last.Lost.Done()

		closed := l.last
		d.declared = errors.New("refused")
		_, err = loop.open(t.Context(), current)
		assert.ErrorContains(t, err, "refused")
		assert.NotZero(t, d.lostAt, "it is declared before it is consumed: a consumer would count deliveries")
		assert.Same(t, closed, l.last)
	})
}

// A strange handler has topics that cannot be subscribed to.
type strange struct{ simple }

var errStrange = errors.New("no such topology")

func (strange) QueueOf(topic string) (string, error) {
	return map[string]string{"": "", "long": strings.Repeat("x", 256)}[topic] + strings.TrimPrefix(topic, "long"), nil
}

func (strange) Declare(_ *Declaration, topic string) error {
	switch topic {
	case "refused":
		return errStrange
	case "panics":
		panic("no queue")
	}
	return nil
}

// The first Subscribe returns what is wrong with its topic, and the connection serves other topics.
func TestTheFirstSubscribeReturnsErrors(t *testing.T) {
	subscribeModel(t, strange{}, model.Config{}, func(m *modelled) {
		s := NewSubscriber(m.connection, strange{}, Config{}, watermill.NopLogger{})
		for topic, text := range map[string]string{
			"refused": `topic "refused": declare: no such topology`,
			"panics":  `topic "panics": declare: Declare panicked: no queue`,
			"missing": "404",
			"":        "its queue has no name",
			"long":    "256 bytes, at most 255",
		} {
			messages, err := s.Subscribe(context.Background(), topic)
			require.ErrorContains(t, err, text)
			assert.Nil(t, messages)
			assert.Equal(t, topic == "refused", errors.Is(err, errStrange))
			var cause *amqp091.Error
			assert.Equal(t, topic == "missing", errors.As(err, &cause))
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := s.Subscribe(ended, "refused")
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, s.SubscribeInitialize("refused"), errStrange)
		require.NoError(t, s.SubscribeInitialize("orders"))
		assert.True(t, m.health().Consuming)
		assert.Len(t, m.connection.Health().Subscriptions, 1)
		require.NoError(t, s.Close())
		require.ErrorIs(t, s.SubscribeInitialize("orders"), ErrClosed)
	})
}
