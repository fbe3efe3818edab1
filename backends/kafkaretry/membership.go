package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

const (
	// lookPause is how often the cluster is looked at while a subscription has no session of its consumer group.
	lookPause = time.Second

	// joinSlack is how much longer than the timeout of a rebalance a subscription may have none.
	joinSlack = 5 * time.Second
)

var errNoMember = errors.New("the process cannot join the consumer group; the log says why")

// membership is that of a subscription in its consumer group, for the Health of the connection. A rebalance interrupts
// it and is no fault. So a subscription without a session is one only where the cluster does not answer, or for longer
// than a rebalance takes.
type membership struct {
	cluster *cluster
	ctx     context.Context // of the subscription

	mu    sync.Mutex
	since time.Time   // without a session
	last  error       // in that time
	look  *time.Timer // nil: there is a session
}

// member returns the membership of a subscription that has no session yet.
func (c *cluster) member(ctx context.Context) *membership {
	m := &membership{cluster: c, ctx: ctx}
	m.ended()
	context.AfterFunc(ctx, m.stop)
	return m
}

// began is called when there is a session.
func (m *membership) began() {
	m.stop()
	subscriptions.Read(m.ctx, nil)
}

func (m *membership) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.look != nil {
		m.look.Stop()
		m.look = nil
	}
}

// ended is called when a session has ended.
func (m *membership) ended() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.look == nil && m.ctx.Err() == nil {
		m.since, m.last = time.Now(), nil
		m.look = time.AfterFunc(lookPause, m.check)
	}
}

// failed is called with errors of the consumer group.
func (m *membership) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = err
}

func (m *membership) check() {
	err := m.cluster.answers()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.look == nil {
		return
	}
	if err == nil && time.Since(m.since) > m.cluster.joining+joinSlack {
		err = errNoMember
		if m.last != nil {
			err = fmt.Errorf("the process cannot join the consumer group: %w", m.last)
		}
	}
	if err != nil {
		subscriptions.Read(m.ctx, err)
	}
	m.look.Reset(lookPause)
}

// answers reports why the cluster does not answer. Subscriptions that ask at the same time share an answer.
func (c *cluster) answers() error {
	c.answering.Lock()
	defer c.answering.Unlock()
	if time.Since(c.answeredAt) < lookPause {
		return c.answer
	}
	c.answer = c.ask(func(admin sarama.ClusterAdmin) error {
		_, _, err := admin.DescribeCluster()
		return err
	})
	c.answeredAt = time.Now()
	return c.answer
}
