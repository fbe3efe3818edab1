package kafkaretry

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eapache/go-resiliency/breaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// impatient is a configuration whose client soon gives up a publish.
func impatient(broker *sarama.MockBroker) Config {
	config := valid()
	config.Brokers = []string{broker.Addr()}
	config.Sarama = sarama.NewConfig()
	config.Sarama.Version = sarama.V2_2_0_0
	config.Sarama.Producer.Retry.Max, config.Sarama.Producer.Retry.Backoff = 0, time.Millisecond
	config.Sarama.Metadata.Retry.Max, config.Sarama.Metadata.Retry.Backoff = 1, time.Millisecond
	return config
}

// withTopics answers as a broker that makes no topic by itself. Of each topic it has the leader.
func withTopics(t *testing.T, broker *sarama.MockBroker, leaders map[string]int32) map[string]sarama.MockResponse {
	metadata := sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), 1).SetController(1)
	for topic, leader := range leaders {
		metadata.SetLeader(topic, 0, leader)
	}
	return map[string]sarama.MockResponse{
		"ApiVersionsRequest": versions(t), "MetadataRequest": metadata, "ProduceRequest": sarama.NewMockProduceResponse(t),
	}
}

// publishAll publishes at the same time, so that sarama's breaker opens.
func publishAll(p message.Publisher, topic string) []error {
	errs := make([]error, 12)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = p.Publish(topic, message.NewMessage(fmt.Sprint(i), nil)) })
	}
	all.Wait()
	return errs
}

// TestProducedTopicsThatDoNotExist: each error names the topic and what to do, and the breaker of sarama does not refuse
// what is published after the topic was made.
func TestProducedTopicsThatDoNotExist(t *testing.T) {
	t.Parallel()
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	broker.SetHandlerByMap(withTopics(t, broker, nil))
	c := newCluster(impatient(broker), watermill.NopLogger{})
	stock, err := c.newProducer(c.config.producer)
	require.NoError(t, err)
	app := publisher{stock, c}
	for range 3 {
		for _, err := range publishAll(app, "invoices") {
			require.EqualError(t, err, `the Kafka topic "invoices" does not exist: make it: kafka-topics.sh --create --topic invoices`)
		}
	}
	for range 4 { // that opens the breaker anyway
		_, err = stock.send("invoices", message.NewMessage("1", nil))
	}
	require.ErrorIs(t, err, breaker.ErrBreakerOpen)
	broker.SetHandlerByMap(withTopics(t, broker, map[string]int32{"invoices": 1}))
	for _, err := range publishAll(app, "invoices") {
		require.NoError(t, err)
	}
	for range 4 {
		_, err = stock.send("receipts", message.NewMessage("1", nil))
	}
	require.ErrorIs(t, err, breaker.ErrBreakerOpen)
	silence := errors.New("no broker answers")
	c.silence, c.lookedAt = silence, time.Now().Add(time.Hour)
	require.ErrorIs(t, app.Publish("receipts", message.NewMessage("1", nil)), silence, "no other producer is tried")
	require.NoError(t, app.Close())
	require.ErrorIs(t, app.Publish("invoices", message.NewMessage("1", nil)), errClosed)
	c.close()
}

// TestPublishesThatOnlyLook: while a topic is missing, sarama, which needs seconds, is tried every ten seconds.
func TestPublishesThatOnlyLook(t *testing.T) {
	t.Parallel()
	broker := sarama.NewMockBroker(t, 1)
	defer broker.Close()
	broker.SetHandlerByMap(withTopics(t, broker, nil))
	c := newCluster(impatient(broker), watermill.NopLogger{})
	p, err := c.newProducer(c.config.producer)
	require.NoError(t, err)
	publish := func() error { return p.Publish("invoices", message.NewMessage("1", nil)) }
	require.ErrorContains(t, publish(), "does not exist")
	require.NoError(t, p.now.stock.Close())
	require.ErrorContains(t, publish(), "does not exist")
	p.missing["invoices"] = time.Now().Add(-missingPause)
	require.ErrorContains(t, publish(), "publisher closed", "sarama may make the topic")
	require.ErrorContains(t, publish(), "does not exist")
	c.close()
}

// TestTheFirstCauseOfAPublish: where brokers do not answer, or refuse what is published, no error is only the breaker's.
func TestTheFirstCauseOfAPublish(t *testing.T) {
	t.Parallel()
	broker := sarama.NewMockBroker(t, 1)
	broker.SetHandlerByMap(withTopics(t, broker, nil))
	c := newCluster(impatient(broker), watermill.NopLogger{})
	app, err := c.newProducer(c.config.producer)
	require.NoError(t, err)
	broker.SetHandlerByMap(withTopics(t, broker, map[string]int32{"invoices": -1}))
	faulty := func(while string) {
		for range 3 {
			for _, err := range publishAll(app, "invoices") {
				require.Error(t, err, while)
				require.ErrorContains(t, err, `"invoices"`, while)
				assert.NotErrorIs(t, err, breaker.ErrBreakerOpen, while)
			}
		}
	}
	faulty("a partition has no leader")
	broker.Close()
	c.answers("invoices")
	faulty("the broker is gone")
	require.NoError(t, app.Close())
	c.close()
}

// TestBreakersWithoutACause: it is not known why sarama refused, and the error has at least the topic.
func TestBreakersWithoutACause(t *testing.T) {
	t.Parallel()
	p := &producer{causes: map[string]error{}}
	require.ErrorContains(t, p.failed("invoices", breaker.ErrBreakerOpen), `"invoices"`)
	first := errors.New("first")
	require.ErrorIs(t, p.failed("invoices", first), first)
	require.ErrorIs(t, p.failed("invoices", breaker.ErrBreakerOpen), first)
}
