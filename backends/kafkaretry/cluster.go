package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/retry"
)

// cluster looks at topics, and makes those that are missing. All subscribers of a connection share it and its client.
type cluster struct {
	config    Config
	logger    watermill.LoggerAdapter
	longest   time.Duration // delay of a tier of the connection's policy
	joining   time.Duration // how long a rebalance may take
	answering time.Duration // how long an answer to a group may take
	network   *network
	sizes     sizes

	calming sync.Mutex
	calms   map[string]*repeats // what handlers and tiers have logged

	unswept atomic.Bool // whether it was logged that Kafka deletes no settled messages

	looking  sync.Mutex
	silence  error // why the cluster did not answer the last look; nil: it did
	lookedAt time.Time
	known    []string // addresses of brokers, from the last answer

	closing context.Context // ends with close
	end     context.CancelFunc
	asking  chan struct{}       // has one while the cluster is asked
	admin   sarama.ClusterAdmin // nil: there is no client yet, or the last one has failed; of the one who asks
}

var errClosed = fmt.Errorf("the connection to Kafka is closed: %w", retry.ErrClosed)

func newCluster(config Config, logger watermill.LoggerAdapter) *cluster {
	consumer := config.consumer().Consumer
	c := &cluster{
		config: config, logger: logger, joining: consumer.Group.Rebalance.Timeout,
		answering: consumer.MaxWaitTime + answerTimeout, network: newNetwork(), asking: make(chan struct{}, 1),
	}
	c.closing, c.end = context.WithCancel(context.Background())
	for _, tier := range append(middleware.Tiers(config.Policy, false), config.RetiredSchedule.Tiers()...) {
		c.longest = max(c.longest, time.Duration(tier))
	}
	return c
}

// await returns what open returns, unless the context or the connection ends before: brokers that drop packets keep a
// request for minutes. Then discard gets what open returns later.
func await[T any](ctx context.Context, c *cluster, open func() (T, error), discard func(T)) (T, error) {
	var none, opened T
	if c.closing.Err() != nil {
		return none, errClosed
	}
	done, left := make(chan error), make(chan struct{})
	go func() {
		found, err := open()
		opened = found
		select {
		case done <- err:
		case <-left:
			if err == nil {
				discard(found)
			}
		}
	}()
	select {
	case err := <-done:
		return opened, err
	case <-ctx.Done():
		close(left)
		return none, context.Cause(ctx)
	case <-c.closing.Done():
		close(left)
		return none, errClosed
	}
}

// ask returns what do returns for a client.
func ask[T any](ctx context.Context, c *cluster, do func(sarama.ClusterAdmin) (T, error)) (found T, err error) {
	select {
	case c.asking <- struct{}{}:
	case <-ctx.Done():
		return found, context.Cause(ctx)
	case <-c.closing.Done():
		return found, errClosed
	}
	return await(ctx, c, func() (found T, err error) {
		defer func() { <-c.asking }()
		err = c.try(func(admin sarama.ClusterAdmin) (err error) {
			found, err = do(admin)
			return err
		})
		return found, err
	}, func(T) {})
}

// try calls do with a client. A client that has been idle may have lost its connections, so do is called once more with
// a new one.
func (c *cluster) try(do func(sarama.ClusterAdmin) error) (err error) {
	for range 2 {
		if c.closing.Err() != nil {
			return errClosed
		}
		used := c.admin != nil
		if !used {
			if c.admin, err = sarama.NewClusterAdmin(c.config.Brokers, c.network.of(c.config.asks())); err != nil {
				c.admin = nil
				return fmt.Errorf("cannot connect to Kafka at %q: %w", c.config.Brokers, err)
			}
		}
		if err = do(c.admin); err == nil || answered(err) {
			return err
		}
		_ = c.admin.Close()
		c.admin = nil
		if !used {
			break
		}
	}
	return err
}

// answered reports whether an error is what Kafka has answered.
func answered(err error) bool {
	var answer sarama.KError
	var refused *sarama.DescribeConfigError
	return errors.As(err, &answer) || errors.As(err, &refused)
}

// close does not wait for what asks the cluster.
func (c *cluster) close() {
	c.end()
	go func() {
		c.asking <- struct{}{} // for good
		if c.admin != nil {
			_ = c.admin.Close() // its connections end later anyway
			c.admin = nil
		}
	}()
}

// partitions returns how many partitions a topic has: 0 where it does not exist, or has one without a leader.
func (c *cluster) partitions(ctx context.Context, topic string) (int, error) {
	return ask(ctx, c, func(admin sarama.ClusterAdmin) (int, error) {
		found, err := admin.DescribeTopics([]string{topic})
		if err != nil {
			return 0, fmt.Errorf("cannot look for the Kafka topic %q: %w", topic, err)
		}
		if len(found) != 1 || found[0].Err != sarama.ErrNoError {
			return 0, nil
		}
		for _, partition := range found[0].Partitions {
			if partition.Leader < 0 {
				return 0, nil
			}
		}
		return len(found[0].Partitions), nil
	})
}

const (
	createTimeout = time.Minute // a busy cluster takes seconds for many topics
	createPause   = 100 * time.Millisecond
)

// ensure makes a topic where it is missing, waits until it is ready, and returns how many partitions it has. A topic
// that exists needs no permission to make topics.
func (c *cluster) ensure(ctx context.Context, topic string, detail *sarama.TopicDetail) (int, error) {
	began, asked := time.Now(), false
	for {
		n, err := c.partitions(ctx, topic)
		if n > 0 || err != nil {
			return n, err
		}
		if !asked {
			_, err := ask(ctx, c, func(admin sarama.ClusterAdmin) (struct{}, error) {
				return struct{}{}, admin.CreateTopic(topic, detail, false)
			})
			if err != nil && !errors.Is(err, sarama.ErrTopicAlreadyExists) {
				return 0, fmt.Errorf("cannot make the Kafka topic %q: give the client the permission, or make it "+
					"beforehand: %w", topic, err)
			}
			asked = true
			continue
		}
		if time.Since(began) > createTimeout {
			return 0, fmt.Errorf("the Kafka topic %q has no leader for each of its partitions", topic)
		}
		if err := pauses.Sleep(ctx, createPause); err != nil {
			return 0, err
		}
	}
}
