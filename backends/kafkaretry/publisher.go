package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/unpublished"
)

// publisher is that of the app's messages.
type publisher struct {
	stock   *producer
	cluster *cluster
}

// Publish implements message.Publisher. It returns nil after all in-sync replicas have the messages.
func (p publisher) Publish(topic string, messages ...*message.Message) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	return p.stock.Publish(topic, messages...)
}

func (p publisher) Close() error { return p.cluster.network.within(p.stock.Close) }

// String is the name in logs and metrics.
func (publisher) String() string { return "kafka.Publisher" }

// copies publishes copies. Its Close ends what the subscribers share, too: the connection closes it last.
type copies struct {
	cluster *cluster
	stock   *producer

	opening sync.Mutex // held while alone is made
	alone   *producer  // nil: no copy has needed it

	mu      sync.Mutex
	closed  bool
	sending sync.WaitGroup // also what no Publish waits for any more; watermill-kafka is closed after it
}

// Publish implements message.Publisher. It does not wait for brokers after the end of a message's context: sarama would
// try again for minutes.
func (p *copies) Publish(topic string, messages ...*message.Message) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	for _, msg := range messages {
		ctx := msg.Context()
		_, err := await(ctx, p.cluster, func() (struct{}, error) {
			return struct{}{}, p.publish(ctx, topic, msg)
		}, func(struct{}) {})
		switch {
		case err == nil:
		case errors.Is(err, errClosed):
			return &unpublished.Error{Kind: unpublished.Closed, Err: err}
		case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
			return &unpublished.Error{Kind: unpublished.Unconfirmed, Err: fmt.Errorf("no broker of Kafka has "+
				"confirmed the copy: %w", err)}
		default:
			return err
		}
	}
	return nil
}

// CheckTopic refuses the topic of a handler before any handler consumes.
func (*copies) CheckTopic(topic string) error { return checkTopic(topic) }

func (p *copies) publish(ctx context.Context, topic string, msg *message.Message) error {
	if !p.begin() {
		return errClosed
	}
	defer p.sending.Done()
	err := p.stock.Publish(topic, msg)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) {
		if err = p.cluster.remake(ctx, topic); err == nil {
			err = p.stock.Publish(topic, msg)
		}
	}
	if !tooLarge(err) {
		return err
	}
	// sarama publishes several messages at once, and the broker refuses all where they are too large together
	alone, err := p.forOne()
	if err == nil {
		err = alone.Publish(topic, msg)
	}
	if tooLarge(err) {
		return &unpublished.Error{Kind: unpublished.TooLarge, Err: err}
	}
	return err
}

func tooLarge(err error) bool {
	var ofClient sarama.ConfigurationError // the only one of a publish
	return errors.Is(err, sarama.ErrMessageSizeTooLarge) || errors.Is(err, sarama.ErrMessageSetSizeTooLarge) ||
		errors.As(err, &ofClient)
}

// begin reports whether the publisher is not closed.
func (p *copies) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.sending.Add(1)
	}
	return !p.closed
}

// forOne connects with the first copy that is published alone.
func (p *copies) forOne() (*producer, error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.alone != nil {
		return p.alone, nil
	}
	alone, err := p.cluster.newProducer(p.cluster.config.alone)
	if err == nil {
		p.alone = alone
	}
	return alone, err
}

// Close implements message.Publisher.
func (p *copies) Close() error {
	p.cluster.close()
	defer p.cluster.network.cut()
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return nil
	}
	return p.cluster.network.within(func() error {
		p.sending.Wait()
		err := p.stock.Close()
		if p.alone != nil {
			err = errors.Join(err, p.alone.Close())
		}
		return err
	})
}

// String is the name in logs and metrics.
func (*copies) String() string { return "kafka.Publisher" }
