package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

const (
	// While a subscription has no session of its consumer group, the cluster is looked at after a pause, which grows with
	// the time without one.
	lookPause        = time.Second
	longestLookPause = 5 * time.Second

	// A look dials for so long, and waits for so long for an answer of a broker. It ends after wholeLookTimeout: newer
	// clients ask a broker several times. looksTimeout is for what needs an answer.
	lookTimeout      = 3 * time.Second
	wholeLookTimeout = 7 * time.Second
	looksTimeout     = 10 * time.Second

	// joinSlack is how much longer than the timeout of a rebalance a subscription may have none.
	joinSlack = 5 * time.Second

	// answerTimeout is how long a broker may take for an answer, besides the time for which it keeps a fetch.
	answerTimeout = 5 * time.Second
)

var (
	errNoMember = errors.New("the process cannot join the consumer group; the log says why")
	errNoAnswer = errors.New("a broker of Kafka does not answer")
)

// membership is that of a subscription in its consumer group, for the Health of the connection. A rebalance interrupts
// it and is no fault. So a subscription without a session, or without an answer in its session, is a fault only where
// the cluster does not answer, or for longer than a rebalance takes. sarama keeps a session whose topic is deleted.
type membership struct {
	cluster *cluster
	topic   string
	ctx     context.Context // the context of the subscription
	traffic traffic         // what the client of the group sends and gets

	mu      sync.Mutex
	session bool        // there is one
	changes int         // how often session has changed
	unknown bool        // Kafka has answered that the topic does not exist, and the cluster is still to be asked
	unread  bool        // it was reported that the topic cannot be read
	since   time.Time   // without a session, or without an answer
	last    error       // in that time
	look    *time.Timer // nil: the subscription has ended
}

// member returns the membership of a subscription that has no session yet.
func (c *cluster) member(ctx context.Context, topic string) *membership {
	m := &membership{cluster: c, topic: topic, ctx: ctx, since: time.Now()}
	m.mu.Lock()
	m.look = time.AfterFunc(lookPause, m.check)
	m.mu.Unlock()
	context.AfterFunc(ctx, m.stop)
	return m
}

// began is called when there is a session.
func (m *membership) began() { m.change(true) }

// ended is called when a session has ended.
func (m *membership) ended() { m.change(false) }

func (m *membership) change(session bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session, m.since, m.last = session, time.Now(), nil
	m.changes++
	if m.look == nil {
		return
	}
	m.look.Reset(lookPause)
	if session {
		m.report(nil)
	}
}

func (m *membership) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.look != nil {
		m.look.Stop()
		m.look = nil
	}
}

// failed is called with errors of the consumer group and its partitions.
func (m *membership) failed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = err
	m.unknown = m.unknown || errors.Is(err, sarama.ErrUnknownTopicOrPartition)
}

func (m *membership) check() {
	m.mu.Lock()
	asked := m.traffic.unanswered()
	answered := asked.IsZero() || time.Since(asked) <= m.cluster.answering
	changes, unknown, well := m.changes, m.unknown, m.session && answered
	m.mu.Unlock()
	var err error
	if !well {
		err = m.cluster.answers(m.topic)
	}
	if err == nil && unknown {
		err = m.cluster.restore(m.ctx, m.topic)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if m.look == nil {
		return
	}
	if changes == m.changes {
		m.judge(err, answered)
	}
	m.look.Reset(min(max(time.Since(m.since), lookPause), longestLookPause))
}

// judge reports what a look has found.
func (m *membership) judge(err error, answered bool) {
	if err == nil {
		m.unknown = false
		if m.session && answered {
			m.since = time.Now()
			m.report(nil)
			return
		}
		if time.Since(m.since) <= m.cluster.joining+joinSlack {
			return // a rebalance
		}
		switch {
		case m.session:
			err = errNoAnswer
		case m.last != nil:
			err = fmt.Errorf("the process cannot join the consumer group: %w", m.last)
		default:
			err = errNoMember
		}
	}
	m.report(err)
}

// report records why the topic cannot be read, or with nil that it can.
func (m *membership) report(err error) {
	subscriptions.Read(m.ctx, err)
	fields := watermill.LogFields{"topic": m.topic}
	switch unread := err != nil; {
	case unread == m.unread:
	case unread:
		m.cluster.logger.Error("Cannot read a topic of Kafka, trying again", err, fields)
	default:
		m.cluster.logger.Info("A topic of Kafka is read again", fields)
	}
	m.unread = err != nil
}

// restore returns an error for a topic that does not exist. It makes one of the retries again.
func (c *cluster) restore(ctx context.Context, topic string) error {
	missing := c.missing(ctx, topic)
	if missing == nil || !c.config.names().IsOwn(topic) {
		return missing
	}
	return c.remake(ctx, topic)
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
	whole, cut := context.WithTimeout(c.network.whole, wholeLookTimeout)
	defer cut()
	own := &network{whole: whole, cut: cut}
	client, err := sarama.NewClient(slices.Concat(c.known, c.config.Brokers), own.of(c.config.looks()))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	err = client.RefreshMetadata(topic)
	var known []string // none, unless a broker has answered: also with an error of the topic
	for _, broker := range client.Brokers() {
		known = append(known, broker.Addr())
	}
	if len(known) == 0 && whole.Err() != nil {
		return fmt.Errorf("timeout: no broker of Kafka has answered within %v", wholeLookTimeout)
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
