package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/eapache/go-resiliency/breaker"
)

// missingPause is how long a topic that does not exist is only looked for. sarama needs seconds for a publish there. It
// is tried again because a publish may make the topic.
const missingPause = 10 * time.Second

// producer publishes with watermill-kafka. After three failures in a row, a breaker of sarama refuses what is published
// to the same topic, for 10 seconds and without the cause. It cannot be turned off. So a producer that has refused
// something is replaced, unless the cluster has the cause.
type producer struct {
	cluster *cluster
	config  func() *sarama.Config

	mu      sync.Mutex // also held while a producer connects
	now     *generation
	closed  bool
	causes  map[string]error     // the last failure of topics that have failed since their last success
	missing map[string]time.Time // when sarama was tried last with topics that do not exist
}

// generation is a producer between two refusals.
type generation struct {
	stock   *kafka.Publisher
	sending sync.WaitGroup // watermill-kafka is closed after it
}

// newProducer connects.
func (c *cluster) newProducer(config func() *sarama.Config) (*producer, error) {
	p := &producer{cluster: c, config: config, causes: map[string]error{}, missing: map[string]time.Time{}}
	return p, p.connect()
}

func (p *producer) connect() error {
	stock, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: p.cluster.config.Brokers, OverwriteSaramaConfig: p.cluster.network.of(p.config()),
	}, p.cluster.logger)
	if err != nil {
		return fmt.Errorf("cannot connect to Kafka at %q: %w", p.cluster.config.Brokers, err)
	}
	p.now = &generation{stock: stock}
	return nil
}

// Publish implements message.Publisher.
func (p *producer) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := p.publish(topic, msg); err != nil {
			return err
		}
	}
	return nil
}

func (p *producer) publish(topic string, msg *message.Message) error {
	if p.onlyLook(topic) {
		if err := p.cluster.missing(msg.Context(), topic); err != nil {
			return err
		}
		p.succeeded(topic)
	}
	used, err := p.send(topic, msg)
	refused := errors.Is(err, breaker.ErrBreakerOpen)
	if refused {
		if silent := p.cluster.answers(topic); silent != nil {
			return p.failed(topic, silent)
		}
	}
	if refused || errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		if missing := p.cluster.missing(msg.Context(), topic); missing != nil {
			return p.failed(topic, missing)
		}
		if err = p.replace(used); err == nil {
			_, err = p.send(topic, msg)
		}
	}
	return p.failed(topic, err)
}

func (p *producer) send(topic string, msg *message.Message) (*generation, error) {
	p.mu.Lock()
	used := p.now
	if p.closed {
		p.mu.Unlock()
		return used, errClosed
	}
	used.sending.Add(1)
	p.mu.Unlock()
	defer used.sending.Done()
	return used, used.stock.Publish(topic, msg)
}

// onlyLook reports whether a topic did not exist and sarama is not to be tried again yet.
func (p *producer) onlyLook(topic string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	tried, missing := p.missing[topic]
	if missing && time.Since(tried) >= missingPause {
		p.missing[topic] = time.Now() // the others look
		return false
	}
	return missing
}

// failed returns the error of a publish, with what was before it where it is the breaker's.
func (p *producer) failed(topic string, err error) error {
	if err == nil {
		p.succeeded(topic)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, breaker.ErrBreakerOpen) {
		p.causes[topic] = err
	} else if before := p.causes[topic]; before != nil {
		err = before
	}
	var missing missingError
	switch {
	case errors.As(err, &missing):
		p.missing[topic] = time.Now()
		return err
	case errors.Is(err, errClosed):
		return err
	}
	return fmt.Errorf("cannot publish to the Kafka topic %q: %w", topic, err)
}

func (p *producer) succeeded(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.causes, topic)
	delete(p.missing, topic)
}

// replace connects another producer, unless that was done already.
func (p *producer) replace(used *generation) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	if p.now != used {
		return nil
	}
	if err := p.connect(); err != nil {
		return err
	}
	go func() { _ = used.close() }()
	return nil
}

func (g *generation) close() error {
	g.sending.Wait()
	return g.stock.Close()
}

// Close implements message.Publisher.
func (p *producer) Close() error {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	return p.now.close()
}

// missingError names a topic that does not exist.
type missingError string

func (topic missingError) Error() string {
	return fmt.Sprintf("the Kafka topic %q does not exist: make it: kafka-topics.sh --create --topic %[1]s", string(topic))
}

func (missingError) Unwrap() error { return sarama.ErrUnknownTopicOrPartition }

// missing returns an error for a topic that does not exist.
func (c *cluster) missing(ctx context.Context, topic string) error {
	found, err := ask(ctx, c, func(admin sarama.ClusterAdmin) ([]*sarama.TopicMetadata, error) {
		return admin.DescribeTopics([]string{topic})
	})
	if err != nil || len(found) != 1 || found[0].Err != sarama.ErrUnknownTopicOrPartition {
		return nil
	}
	return missingError(topic)
}
