package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

const (
	// While a subscription has no session of its consumer group, the cluster is looked at after a pause, which grows with
	// the time without one.
	lookPause        = time.Second
	longestLookPause = 5 * time.Second

	// A look dials for so long, and waits for so long for an answer of a broker. After looksTimeout it asks no other one.
	lookTimeout  = 3 * time.Second
	looksTimeout = 10 * time.Second

	// joinSlack is how much longer than the timeout of a rebalance a subscription may have none.
	joinSlack = 5 * time.Second
)

var errNoMember = errors.New("the process cannot join the consumer group; the log says why")

// membership is that of a subscription in its consumer group, for the Health of the connection. A rebalance interrupts
// it and is no fault. So a subscription without a session is a fault only where the cluster does not answer, or for
// longer than a rebalance takes.
type membership struct {
	cluster *cluster
	topic   string
	ctx     context.Context // the context of the subscription

	mu    sync.Mutex
	since time.Time   // without a session
	last  error       // in that time
	look  *time.Timer // nil: there is a session
}

// member returns the membership of a subscription that has no session yet.
func (c *cluster) member(ctx context.Context, topic string) *membership {
	m := &membership{cluster: c, topic: topic, ctx: ctx}
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
	err := m.cluster.answers(m.topic)
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
	m.look.Reset(min(max(time.Since(m.since), lookPause), longestLookPause))
}

// answers reports why the cluster does not answer. Subscriptions that ask at the same time share an answer.
func (c *cluster) answers(topic string) error {
	c.looking.Lock()
	defer c.looking.Unlock()
	if time.Since(c.lookedAt) >= lookPause {
		c.silence, c.lookedAt = c.look(topic), time.Now()
	}
	return c.silence
}

// look asks any broker for one topic, because an answer about all topics of a cluster can be large. It has a client of
// its own, with short timeouts: brokers that drop packets delay nothing else.
func (c *cluster) look(topic string) error {
	client, err := sarama.NewClient(slices.Concat(c.known, c.config.Brokers), c.network.of(c.config.looks()))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	err = client.RefreshMetadata(topic)
	var known []string // none, unless a broker has answered: also with an error of the topic
	for _, broker := range client.Brokers() {
		known = append(known, broker.Addr())
	}
	if len(known) == 0 {
		return err
	}
	c.known = known
	return nil
}

// looks is the configuration of a client for one look.
func (c Config) looks() *sarama.Config {
	own := c.consumer()
	for _, timeout := range []*time.Duration{&own.Net.DialTimeout, &own.Net.ReadTimeout, &own.Net.WriteTimeout} {
		*timeout = min(*timeout, lookTimeout)
	}
	own.Metadata.Full, own.Metadata.RefreshFrequency, own.Metadata.AllowAutoTopicCreation = false, 0, false
	own.Metadata.Retry.Max, own.Metadata.Timeout = 0, looksTimeout
	return own
}
