package kafkaretry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/relay"
)

// relayGroup is the consumer group of the tiers, which all services of a prefix share.
const relayGroup = "retry-relay"

// sweepTimeout bounds what Close does for topics that are small.
const sweepTimeout = 2 * time.Second

// subscriber joins one consumer group for each topic. With one group for all topics, each member that joins or leaves
// would cause a rebalance of all of them.
type subscriber struct {
	cluster *cluster
	params  relay.SubscriberParams

	mu   sync.Mutex
	open map[*opened]bool
}

// opened is a subscription to a topic, until it has ended.
type opened struct {
	close   func() error // called once
	sweeper *sweeper     // nil: the topic is the app's
}

// newSubscriber is relay.Config.NewSubscriber.
func (c *cluster) newSubscriber(p relay.SubscriberParams) (message.Subscriber, error) {
	return &subscriber{cluster: c, params: p}, nil
}

// Subscribe implements message.Subscriber. When the context ends, the messages in flight of a handler may still be
// settled: Close ends them.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if err := s.prepare(topic); err != nil {
		return nil, err
	}
	sweeper := s.sweeper(topic)
	if s.params.Tier > 0 {
		r, err := s.cluster.readTier(ctx, topic, sweeper)
		if err != nil {
			return nil, err
		}
		one := s.add(r.Close, sweeper)
		go func() {
			<-r.done
			s.forget(one)
		}()
		return r.out, nil
	}
	claims := &claims{sweeper: sweeper, stop: ctx.Done(), member: s.cluster.member(ctx, topic)}
	subscriptions.Count(ctx, claims.backlog.count)
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	in, stock, err := s.join(own, topic, claims)
	if err != nil {
		end()
		claims.member.stop()
		return nil, err
	}
	one := s.add(stock.Close, sweeper)
	return claims.finish(in, func() {
		end()
		if err := one.close(); err != nil {
			s.cluster.logger.Error("Cannot leave a consumer group", err, watermill.LogFields{"topic": topic})
		}
		s.forget(one)
	}), nil
}

func (s *subscriber) add(end func() error, of *sweeper) *opened {
	one := &opened{close: sync.OnceValue(end), sweeper: of}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*opened]bool{}
	}
	s.open[one] = true
	return one
}

// forget removes a subscription that has ended.
func (s *subscriber) forget(one *opened) {
	if one.sweeper != nil {
		one.sweeper.sweep()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, one)
}

// sweeper returns nil for a topic of the app.
func (s *subscriber) sweeper(topic string) *sweeper {
	if s.params.Tier == 0 && !s.cluster.config.names().IsReturn(topic) {
		return nil
	}
	return &sweeper{cluster: s.cluster, topic: topic}
}

// join joins the consumer group of a handler's topic.
func (s *subscriber) join(
	ctx context.Context, topic string, claims *claims,
) (<-chan *message.Message, *kafka.Subscriber, error) {
	stock, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: s.cluster.config.Brokers, ConsumerGroup: s.params.Group + "." + topic,
		OverwriteSaramaConfig: s.cluster.config.consumer(), Tracer: claims,
	}, s.cluster.logger)
	if err != nil {
		return nil, nil, err
	}
	in, err := stock.Subscribe(ctx, topic)
	if err != nil {
		return nil, nil, errors.Join(err, stock.Close())
	}
	return in, stock, nil
}

// prepare makes the topics that a subscription needs, and checks that they keep what waits there.
func (s *subscriber) prepare(topic string) error {
	c, names := s.cluster, s.cluster.config.names()
	switch longest := max(c.longest, time.Duration(s.params.Tier)); {
	case s.params.Tier > 0:
		if _, err := c.ensure(topic, waitingTopic(1, longest)); err != nil {
			return err
		}
		_, err := c.ensure(names.Dead(relaytopic.Unknown), deadTopic())
		return errors.Join(err, c.checkRetention(topic, longest))
	case names.IsReturn(topic):
		// As many retries are in flight as first deliveries. The app's topic is known, or its name is whole here.
		var partitions int
		var err error
		if s.params.Topic != "" {
			partitions, err = c.ensure(s.params.Topic, appTopic())
		} else {
			partitions, err = c.partitions(strings.TrimPrefix(topic, names.Return(s.params.Group+".")))
		}
		if err == nil {
			_, err = c.ensure(topic, waitingTopic(max(1, partitions), longest))
		}
		if err != nil {
			return err
		}
		return c.checkRetention(topic, longest)
	default:
		partitions, err := c.ensure(topic, appTopic())
		if err != nil {
			return err
		}
		if partitions < s.params.Concurrency {
			c.logger.Info("A topic has fewer partitions than its handler has Concurrency: Kafka delivers one message "+
				"of each partition at a time", watermill.LogFields{
				"topic": topic, "handler_name": s.params.Handler, "partitions": partitions,
				"concurrency": s.params.Concurrency,
			})
		}
		_, err = c.ensure(names.Dead(relaytopic.Key(s.params.Group, topic)), deadTopic())
		return err
	}
}

// Close leaves all consumer groups, at the same time. Messages in flight stay unacknowledged.
func (s *subscriber) Close() error {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.open = nil
	s.mu.Unlock()
	faults := make([]error, len(open))
	var all sync.WaitGroup
	for i, one := range open {
		all.Go(func() { faults[i] = one.close() })
	}
	all.Wait()
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for _, one := range open {
			if one.sweeper != nil {
				one.sweeper.sweep()
			}
		}
	}()
	select {
	case <-swept:
	case <-time.After(sweepTimeout): // brokers that do not answer; the retention deletes what stays
	}
	return errors.Join(faults...)
}

// String is the name in logs, and in the metadata of Watermill's PoisonQueue.
func (*subscriber) String() string { return "kafka.Subscriber" }
