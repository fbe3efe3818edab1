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
	if p.Topic != "" {
		c.sizes.add(p.Group, p.Topic)
	}
	return &subscriber{cluster: c, params: p}, nil
}

// Subscribe implements message.Subscriber. When the context ends, the messages in flight of a handler may still be
// settled: Close ends them.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, topic); err != nil {
		return nil, err
	}
	sweeper := s.sweeper(topic)
	if s.params.Tier > 0 {
		r, err := await(ctx, s.cluster, func() (*tierReader, error) {
			return s.readTier(ctx, topic, sweeper)
		}, func(r *tierReader) { r.end() })
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
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	claims := &claims{
		subscriber: s, topic: topic, sweeper: sweeper, stop: ctx.Done(), ctx: own, member: s.cluster.member(ctx, topic),
	}
	subscriptions.Count(ctx, claims.backlog.count)
	stock, err := await(ctx, s.cluster, func() (joined, error) { return s.join(own, topic, claims) }, joined.leave)
	if err != nil {
		end()
		claims.member.stop()
		return nil, err
	}
	one := s.add(func() error {
		end() // what pauses
		return stock.Close()
	}, sweeper)
	return claims.finish(stock.in, func() {
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

// group returns the consumer group of a topic. No other group and topic have it.
func (s *subscriber) group(topic string) string { return relaytopic.Key(s.params.Group, topic) }

// joined is the membership of watermill-kafka in a consumer group.
type joined struct {
	*kafka.Subscriber
	in <-chan *message.Message
}

func (j joined) leave() { _ = j.Close() }

// join joins the consumer group of a handler's topic.
func (s *subscriber) join(ctx context.Context, topic string, claims *claims) (joined, error) {
	c := s.cluster
	config := c.config.consumer()
	if claims.sweeper != nil { // a topic that a client makes has the cluster's retention
		config.Metadata.AllowAutoTopicCreation = false
	}
	stock, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: c.config.Brokers, ConsumerGroup: s.group(topic),
		OverwriteSaramaConfig: c.network.watched(config, &claims.member.traffic), Tracer: claims,
	}, c.calm(s.params, claims.member))
	if err != nil {
		return joined{}, err
	}
	in, err := stock.Subscribe(ctx, topic)
	if err != nil {
		return joined{}, errors.Join(err, stock.Close())
	}
	return joined{stock, in}, nil
}

// prepare makes the topics that a subscription needs, and checks that they keep what waits there.
func (s *subscriber) prepare(ctx context.Context, topic string) error {
	c, names := s.cluster, s.cluster.config.names()
	switch longest := max(c.longest, time.Duration(s.params.Tier)); {
	case s.params.Tier > 0:
		if err := c.makeTier(ctx, topic, longest); err != nil {
			return err
		}
		settings, err := c.settings(ctx, topic)
		if err != nil {
			return err
		}
		return errors.Join(c.checkRetention(topic, settings, longest), c.checkTier(topic, settings))
	case names.IsReturn(topic):
		key := strings.TrimPrefix(topic, names.Return(""))
		app := s.params.Topic
		if app != "" {
			if _, err := c.ensure(ctx, app, appTopic()); err != nil {
				return err
			}
		} else if app = c.sizes.of(key); relaytopic.Key(s.params.Group, app) == key { // its name is whole
			c.sizes.add(s.params.Group, app)
		}
		if err := c.makeReturn(ctx, topic); err != nil {
			return err
		}
		settings, err := c.settings(ctx, topic)
		if err != nil {
			return err
		}
		return errors.Join(c.checkRetention(topic, settings, longest), c.checkOwn(topic, settings, app))
	default:
		partitions, err := c.ensure(ctx, topic, appTopic())
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
		c.sizes.add(s.params.Group, topic)
		dead := names.Dead(relaytopic.Key(s.params.Group, topic))
		if err := c.makeDead(ctx, dead); err != nil {
			return err
		}
		settings, err := c.settings(ctx, dead)
		if err != nil {
			return err
		}
		return errors.Join(c.checkOwn(dead, settings, topic), c.checkTiers())
	}
}

// Close leaves all consumer groups, at the same time. Messages in flight stay unacknowledged.
func (s *subscriber) Close() error {
	s.mu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.open = nil
	s.mu.Unlock()
	err := s.cluster.network.within(func() error {
		faults := make([]error, len(open))
		var all sync.WaitGroup
		for i, one := range open {
			all.Go(func() { faults[i] = one.close() })
		}
		all.Wait()
		return errors.Join(faults...)
	})
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
	case <-s.cluster.network.whole.Done():
	case <-time.After(sweepTimeout): // brokers that do not answer; the retention deletes what stays
	}
	return err
}

// String is the name in logs, and in the metadata of Watermill's PoisonQueue.
func (*subscriber) String() string { return "kafka.Subscriber" }
