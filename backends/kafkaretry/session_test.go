package kafkaretry

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// redAfter is how long Health may not see that a topic is not read.
const redAfter = 15 * time.Second

// session is a subscription that has a session, with the cluster behind it.
type session struct {
	*membership
	list     subscriptions.List
	logs     *watermill.CaptureLoggerAdapter
	existing *topics
}

// topics are those that exist.
type topics struct {
	sarama.ClusterAdmin

	mu    sync.Mutex
	names map[string]bool
}

func (a *topics) has(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.names[name]
}

func (a *topics) set(name string, exists bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.names[name] = exists
}

func (a *topics) DescribeTopics(names []string) (found []*sarama.TopicMetadata, err error) {
	for _, name := range names {
		topic := &sarama.TopicMetadata{Name: name, Partitions: []*sarama.PartitionMetadata{{Leader: 1}}}
		if !a.has(name) {
			topic.Err, topic.Partitions = sarama.ErrUnknownTopicOrPartition, nil
		}
		found = append(found, topic)
	}
	return found, nil
}

func (a *topics) CreateTopic(name string, _ *sarama.TopicDetail, _ bool) error {
	a.set(name, true)
	return nil
}

func (*topics) DescribeConfig(sarama.ConfigResource) ([]sarama.ConfigEntry, error) { return nil, nil }

func (*topics) Close() error { return nil }

// inSession calls test in virtual time.
func inSession(t *testing.T, topic string, test func(*testing.T, *session)) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{logs: watermill.NewCaptureLogger(), existing: &topics{names: map[string]bool{topic: true, "orders": true}}}
		c := newCluster(valid(), s.logs)
		c.admin = s.existing
		c.lookedAt = time.Now().Add(24 * time.Hour) // what answer says is the answer of each look
		one := s.list.New("billing", topic)
		ctx, cancel := context.WithCancel(one.Report(t.Context(), topic))
		s.membership = c.member(ctx, topic)
		one.Begin()
		s.began()
		test(t, s)
		cancel()
		c.close()
	})
}

// answer lets the cluster answer looks, or not.
func (s *session) answer(silence error) {
	s.cluster.looking.Lock()
	defer s.cluster.looking.Unlock()
	s.cluster.silence = silence
}

func (s *session) ready() error { return retry.Health{Subscriptions: s.list.Health()}.Ready() }

// connect returns a connection of the client, and its other end.
func (s *session) connect() (client, broker net.Conn) {
	client, broker = net.Pipe()
	return s.traffic.watch(client), broker
}

// exchange sends a request, and reads an answer where there is to be one.
func exchange(t *testing.T, client, broker net.Conn, answered bool) {
	t.Helper()
	go func() { _, _ = client.Write([]byte{1}) }()
	one := make([]byte, 1)
	_, err := broker.Read(one)
	require.NoError(t, err)
	if answered {
		go func() { _, _ = broker.Write(one) }()
		_, err = client.Read(one)
		require.NoError(t, err)
	}
}

// TestBrokersThatStopAnswering: a session whose brokers do not answer is no longer one that consumes, until they do.
func TestBrokersThatStopAnswering(t *testing.T) {
	inSession(t, "orders", func(t *testing.T, s *session) {
		time.Sleep(time.Minute)
		require.NoError(t, s.ready(), "an idle client")
		client, broker := s.connect()
		for range 60 {
			exchange(t, client, broker, true)
			time.Sleep(time.Second)
		}
		require.NoError(t, s.ready(), "answers")

		exchange(t, client, broker, false)
		time.Sleep(s.cluster.joining)
		require.NoError(t, s.ready(), "the cluster answers, and this is a join: a cooperative one is in a session")
		s.answer(errors.New("no broker answers"))
		time.Sleep(redAfter)
		require.ErrorContains(t, s.ready(), "no broker answers")
		require.NoError(t, client.Close())
		time.Sleep(time.Minute)
		require.Error(t, s.ready(), "a closed connection is no answer")
		s.answer(nil)
		again, broker := s.connect()
		exchange(t, again, broker, true)
		time.Sleep(longestLookPause + time.Second)
		require.NoError(t, s.ready())
		require.NoError(t, again.Close())

		client, broker = s.connect()
		s.answer(errors.New("no broker answers"))
		exchange(t, client, broker, false)
		time.Sleep(redAfter)
		require.Error(t, s.ready(), "from the first second on")
		s.answer(nil)
		time.Sleep(2 * s.cluster.joining)
		require.ErrorContains(t, s.ready(), "a broker of Kafka does not answer", "others do")
		require.NoError(t, client.Close())

		var lines []string
		for _, level := range []watermill.LogLevel{watermill.ErrorLogLevel, watermill.InfoLogLevel} {
			for _, line := range s.logs.Captured()[level] {
				lines = append(lines, line.Msg)
			}
		}
		assert.Equal(t, []string{
			"Cannot read a topic of Kafka, trying again", "Cannot read a topic of Kafka, trying again",
			"A topic of Kafka is read again",
		}, lines, "one for each change of state")
	})
}

// TestTopicsThatAreDeleted while they are read: sarama keeps the session. One of the retries is made again.
func TestTopicsThatAreDeleted(t *testing.T) {
	deleted := &sarama.ConsumerError{Topic: "orders", Err: sarama.ErrUnknownTopicOrPartition}
	inSession(t, "orders", func(t *testing.T, s *session) {
		s.failed(deleted)
		time.Sleep(redAfter)
		require.NoError(t, s.ready(), "it has another leader")
		s.existing.set("orders", false)
		s.failed(deleted)
		time.Sleep(redAfter)
		require.ErrorContains(t, s.ready(), `the Kafka topic "orders" does not exist: make it: kafka-topics.sh --create --topic orders`)
		time.Sleep(time.Hour)
		require.Error(t, s.ready(), "as long as it is missing")
		s.existing.set("orders", true)
		time.Sleep(longestLookPause + time.Second)
		require.NoError(t, s.ready())
		s.existing.set("orders", false)
		s.ended() // a join fails, too
		s.failed(sarama.ErrUnknownTopicOrPartition)
		time.Sleep(redAfter)
		require.ErrorContains(t, s.ready(), "does not exist")
	})
	inSession(t, "retry.return.billing.orders", func(t *testing.T, s *session) {
		s.existing.set(s.topic, false)
		s.failed(deleted)
		time.Sleep(redAfter)
		require.NoError(t, s.ready())
		assert.True(t, s.existing.has(s.topic))
	})
}

// TestErrorsThatRepeat: of the errors of a handler one is in the log every 10 seconds, with how many were left out.
func TestErrorsThatRepeat(t *testing.T) {
	inSession(t, "orders", func(t *testing.T, s *session) {
		c := s.cluster
		billing := c.calm(relay.SubscriberParams{Handler: "billing"}, s.membership).With(watermill.LogFields{"of": "watermill"})
		retries := c.calm(relay.SubscriberParams{Handler: "billing"}, s.membership)
		mailing := c.calm(relay.SubscriberParams{Handler: "mailing"}, s.membership)
		for range 10 {
			for range 4 { // partitions
				billing.Error("Sarama internal error", sarama.ErrOutOfBrokers, nil)
				retries.Error("Sarama internal error", sarama.ErrOutOfBrokers, nil)
				mailing.Error("Sarama internal error", sarama.ErrOutOfBrokers, nil)
			}
			time.Sleep(time.Second)
		}
		lines := func() []watermill.CapturedMessage { return s.logs.Captured()[watermill.ErrorLogLevel] }
		assert.Equal(t, 2, len(lines()), "one of each handler")
		assert.Equal(t, 118, len(s.logs.Captured()[watermill.DebugLogLevel]))
		billing.Error("Sarama internal error", sarama.ErrOutOfBrokers, nil)
		last := lines()[len(lines())-1]
		assert.Equal(t, 79, last.Fields["errors_before"])
		assert.Equal(t, "watermill", last.Fields["of"])
		require.ErrorIs(t, last.Err, sarama.ErrOutOfBrokers)
		require.ErrorIs(t, s.last, sarama.ErrOutOfBrokers, "Health has it")
	})
}
