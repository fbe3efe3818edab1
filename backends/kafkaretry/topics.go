package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/warning"
)

// clusterDefault asks for the number of partitions or replicas that the cluster gives to new topics.
const clusterDefault = -1

// appTopic is a topic of the app, as a publish would make it.
func appTopic() *sarama.TopicDetail {
	return &sarama.TopicDetail{NumPartitions: clusterDefault, ReplicationFactor: clusterDefault}
}

// spare is how long messages stay that no process reads.
const spare = 7 * 24 * time.Hour

// waitingTopic is a tier or a return topic. Its messages stay for a week longer than the longest delay.
func waitingTopic(partitions int, longest time.Duration, largest int) *sarama.TopicDetail {
	return ownTopic(partitions, strconv.FormatInt((longest+spare).Milliseconds(), 10), largest)
}

// deadTopic keeps dead letters without a limit.
func deadTopic(largest int) *sarama.TopicDetail { return ownTopic(1, "-1", largest) }

// recordRoom is how much larger than its message a copy may be, at least: it has the failure record.
const recordRoom = 64 << 10

// ownTopic is one of the retries. It overrides the cluster's settings that delete messages, and takes the copies of the
// largest message of the app. 0: that is not known, and the cluster decides.
func ownTopic(partitions int, retention string, largest int) *sarama.TopicDetail {
	unlimited, policy := "-1", "delete"
	detail := &sarama.TopicDetail{
		NumPartitions: int32(partitions), ReplicationFactor: clusterDefault,
		ConfigEntries: map[string]*string{
			"retention.ms": &retention, "retention.bytes": &unlimited, "cleanup.policy": &policy,
		},
	}
	if largest > 0 {
		size := strconv.Itoa(largest + recordRoom)
		detail.ConfigEntries[maxMessageBytes] = &size
	}
	return detail
}

// maxMessageBytes is the name of a setting of topics.
const maxMessageBytes = "max.message.bytes"

// settings returns those of a topic that the retries depend on. They are empty where it is not there, and nil where the
// cluster does not show them.
func (c *cluster) settings(ctx context.Context, topic string) (map[string]string, error) {
	found, err := ask(ctx, c, func(admin sarama.ClusterAdmin) ([]sarama.ConfigEntry, error) {
		return admin.DescribeConfig(sarama.ConfigResource{
			Type: sarama.TopicResource, Name: topic,
			ConfigNames: []string{"retention.ms", "retention.bytes", "cleanup.policy", maxMessageBytes},
		})
	})
	settings := map[string]string{}
	for _, entry := range found {
		settings[entry.Name] = entry.Value
	}
	var refused *sarama.DescribeConfigError
	switch {
	case err == nil, errors.As(err, &refused) && refused.Err == sarama.ErrUnknownTopicOrPartition:
	case answered(err):
		warning.Log(c.logger, "The cluster does not show the settings of a topic: make sure that the retries are kept "+
			"for longer than the longest delay, and that their topics take the largest message and its failure record",
			watermill.LogFields{"topic": topic, "longest_delay": c.longest, "err": err})
		return nil, nil
	default:
		return nil, err
	}
	return settings, nil
}

// checkRetention returns an error for a topic from which Kafka deletes messages before they are due.
func (c *cluster) checkRetention(topic string, settings map[string]string, longest time.Duration) error {
	if strings.Contains(settings["cleanup.policy"], "compact") {
		return fmt.Errorf("topic %q: its cleanup.policy is %q, and Kafka refuses copies there, because they have no "+
			"key: set it to delete", topic, settings["cleanup.policy"])
	}
	if limit := settings["retention.bytes"]; limit != "" && limit != "-1" {
		warning.Log(c.logger, "Kafka deletes messages that wait when a partition of their topic is larger than its "+
			"retention.bytes: set it to -1", watermill.LogFields{"topic": topic, "retention_bytes": limit})
	}
	milliseconds, err := strconv.ParseInt(settings["retention.ms"], 10, 64)
	if err != nil || milliseconds < 0 || milliseconds > longest.Milliseconds() {
		return nil // a setting that is not shown, or no limit, or long enough
	}
	return fmt.Errorf("topic %q: its retention.ms is %d, and messages wait for up to %v (%d ms), so Kafka would delete "+
		"them: set it to more, better to %d, or to -1: kafka-configs.sh --alter --topic %s --add-config "+
		"retention.ms=%[5]d", topic, milliseconds, longest, longest.Milliseconds(), (longest + spare).Milliseconds(),
		topic)
}

// sizes knows how large messages may be.
type sizes struct {
	mu    sync.Mutex
	apps  map[string]int    // the largest message of the app's topics; 0: not known yet; -1: the cluster does not show it
	tiers map[string]int    // the largest message of the tiers; 0: not known
	keys  map[string]string // the app's topics by their keys
}

// add adds a topic of the app.
func (s *sizes) add(group, topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.apps == nil {
		s.apps, s.keys = map[string]int{}, map[string]string{}
	}
	s.apps[topic] += 0
	s.keys[relaytopic.Key(group, topic)] = topic
}

func (s *sizes) size(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.apps[topic]
}

// know keeps the size of a topic of this process.
func (s *sizes) know(topic string, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ours := s.apps[topic]; ours {
		s.apps[topic] = bytes
	}
}

// topics returns those of the app.
func (s *sizes) topics() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.apps))
}

// of returns the topic of a key. That of another process may not be its topic where the key has a hash.
func (s *sizes) of(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if topic := s.keys[key]; topic != "" {
		return topic
	}
	_, topic, found := strings.Cut(key, ".")
	if !found {
		return key
	}
	return topic
}

// largest returns which of the topics has the largest messages.
func (s *sizes) largest(topics ...string) (topic string, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range topics {
		if s.apps[one] > bytes {
			topic, bytes = one, s.apps[one]
		}
	}
	return topic, bytes
}

// measure returns the largest message that topics of the app may have. It asks where that is not known.
func (c *cluster) measure(ctx context.Context, topics ...string) (largest int, err error) {
	for _, topic := range topics {
		bytes := c.sizes.size(topic)
		if bytes == 0 {
			settings, err := c.settings(ctx, topic)
			if err != nil {
				return 0, err
			}
			if bytes, _ = strconv.Atoi(settings[maxMessageBytes]); settings == nil {
				bytes = -1
			}
			c.sizes.know(topic, bytes)
		}
		largest = max(largest, bytes)
	}
	return largest, nil
}

// checkSize returns an error for a topic of the retries that is smaller than topics of the app.
func (c *cluster) checkSize(topic string, bytes int, apps ...string) error {
	app, largest := c.sizes.largest(apps...)
	if bytes <= 0 || bytes >= largest {
		return nil
	}
	return fmt.Errorf("topic %q: its %s is %d, and that of topic %q is %d, so that failed messages would not fit: set "+
		"it to more, better to %d: kafka-configs.sh --alter --topic %s --add-config %[2]s=%[6]d", topic, maxMessageBytes,
		bytes, app, largest, largest+recordRoom, topic)
}

// checkOwn is checkSize for a topic that is read.
func (c *cluster) checkOwn(topic string, settings map[string]string, app string) error {
	bytes, _ := strconv.Atoi(settings[maxMessageBytes])
	return c.checkSize(topic, bytes, app)
}

// checkTier is checkSize for a tier, also where further topics of the app become known.
func (c *cluster) checkTier(topic string, settings map[string]string) error {
	bytes, _ := strconv.Atoi(settings[maxMessageBytes])
	c.sizes.mu.Lock()
	if c.sizes.tiers == nil {
		c.sizes.tiers = map[string]int{}
	}
	c.sizes.tiers[topic] = bytes
	c.sizes.mu.Unlock()
	return c.checkSize(topic, bytes, c.sizes.topics()...)
}

// checkTiers is checkTier for all tiers that are subscribed.
func (c *cluster) checkTiers() error {
	c.sizes.mu.Lock()
	tiers := maps.Clone(c.sizes.tiers)
	c.sizes.mu.Unlock()
	var faults []error
	for _, topic := range slices.Sorted(maps.Keys(tiers)) {
		faults = append(faults, c.checkSize(topic, tiers[topic], c.sizes.topics()...))
	}
	return errors.Join(faults...)
}

// makeTier makes a tier, and the topic of what is not of this library there.
func (c *cluster) makeTier(ctx context.Context, topic string, longest time.Duration) error {
	largest, err := c.measure(ctx, c.sizes.topics()...)
	if err != nil {
		return err
	}
	if _, err := c.ensure(ctx, topic, waitingTopic(1, longest, largest)); err != nil {
		return err
	}
	return c.makeDead(ctx, c.config.names().Dead(relaytopic.Unknown))
}

// makeReturn makes a return topic. As many retries are in flight as first deliveries.
func (c *cluster) makeReturn(ctx context.Context, topic string) error {
	app := c.sizes.of(strings.TrimPrefix(topic, c.config.names().Return("")))
	largest := 0
	partitions, err := c.partitions(ctx, app)
	if err == nil {
		largest, err = c.measure(ctx, app)
	}
	if err == nil {
		_, err = c.ensure(ctx, topic, waitingTopic(max(1, partitions), c.longest, largest))
	}
	return err
}

// makeDead makes a dead-letter topic.
func (c *cluster) makeDead(ctx context.Context, topic string) error {
	apps := c.sizes.topics() // of what is not of this library
	if key := strings.TrimPrefix(topic, c.config.names().Dead("")); key != relaytopic.Unknown {
		apps = []string{c.sizes.of(key)}
	}
	largest, err := c.measure(ctx, apps...)
	if err == nil {
		_, err = c.ensure(ctx, topic, deadTopic(largest))
	}
	return err
}

// remake makes a topic of the retries that was deleted.
func (c *cluster) remake(ctx context.Context, topic string) error {
	switch names := c.config.names(); {
	case names.IsReturn(topic):
		return c.makeReturn(ctx, topic)
	case names.IsDead(topic):
		return c.makeDead(ctx, topic)
	default:
		return c.makeTier(ctx, topic, c.longest)
	}
}
