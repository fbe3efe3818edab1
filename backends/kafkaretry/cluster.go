package kafkaretry

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/warning"
	"github.com/tieredretry/watermill-retry/retry"
)

// cluster looks at topics, and makes those that are missing. All subscribers of a connection share it and its client.
type cluster struct {
	config  Config
	logger  watermill.LoggerAdapter
	longest time.Duration // delay of a tier of the connection's policy
	joining time.Duration // how long a rebalance may take

	unswept atomic.Bool // whether it was logged that Kafka deletes no settled messages

	looking  sync.Mutex
	silence  error // why the cluster did not answer the last look; nil: it did
	lookedAt time.Time
	known    []string // addresses of brokers, from the last answer

	closed atomic.Bool
	mu     sync.Mutex          // held while the cluster is asked
	admin  sarama.ClusterAdmin // nil: there is no client yet, or the last one has failed
}

var errClosed = fmt.Errorf("the connection to Kafka is closed: %w", retry.ErrClosed)

func newCluster(config Config, logger watermill.LoggerAdapter) *cluster {
	c := &cluster{
		config: config, logger: logger, joining: config.consumer().Consumer.Group.Rebalance.Timeout,
	}
	for _, tier := range append(middleware.Tiers(config.Policy, false), config.RetiredSchedule.Tiers()...) {
		c.longest = max(c.longest, time.Duration(tier))
	}
	return c
}

// ask calls do with a client. A client that has been idle may have lost its connections, so do is called once more with
// a new one.
func (c *cluster) ask(do func(sarama.ClusterAdmin) error) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 2 {
		if c.closed.Load() {
			return errClosed
		}
		used := c.admin != nil
		if !used {
			if c.admin, err = sarama.NewClusterAdmin(c.config.Brokers, c.config.consumer()); err != nil {
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

// close does not wait for what asks the cluster: brokers that drop packets keep that for minutes.
func (c *cluster) close() {
	c.closed.Store(true)
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.admin != nil {
			_ = c.admin.Close() // its connections end later anyway
			c.admin = nil
		}
	}()
}

// partitions returns how many partitions a topic has: 0 where it does not exist, or has one without a leader.
func (c *cluster) partitions(topic string) (n int, err error) {
	err = c.ask(func(admin sarama.ClusterAdmin) error {
		found, err := admin.DescribeTopics([]string{topic})
		if err != nil {
			return fmt.Errorf("cannot look for the Kafka topic %q: %w", topic, err)
		}
		if n = 0; len(found) == 1 && found[0].Err == sarama.ErrNoError {
			n = len(found[0].Partitions)
			for _, partition := range found[0].Partitions {
				if partition.Leader < 0 {
					n = 0
				}
			}
		}
		return nil
	})
	return n, err
}

const (
	createTimeout = time.Minute // a busy cluster takes seconds for many topics
	createPause   = 100 * time.Millisecond
)

// ensure makes a topic where it is missing, waits until it is ready, and returns how many partitions it has. A topic
// that exists needs no permission to make topics.
func (c *cluster) ensure(topic string, detail *sarama.TopicDetail) (int, error) {
	began, asked := time.Now(), false
	for {
		n, err := c.partitions(topic)
		if n > 0 || err != nil {
			return n, err
		}
		if !asked {
			err := c.ask(func(admin sarama.ClusterAdmin) error { return admin.CreateTopic(topic, detail, false) })
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
		time.Sleep(createPause)
	}
}

// clusterDefault asks for the number of partitions or replicas that the cluster gives to new topics.
const clusterDefault = -1

// appTopic is a topic of the app, as a publish would make it.
func appTopic() *sarama.TopicDetail {
	return &sarama.TopicDetail{NumPartitions: clusterDefault, ReplicationFactor: clusterDefault}
}

// spare is how long messages stay that no process reads.
const spare = 7 * 24 * time.Hour

// waitingTopic is a tier or a return topic. Its messages stay for a week longer than the longest delay.
func waitingTopic(partitions int, longest time.Duration) *sarama.TopicDetail {
	return ownTopic(partitions, strconv.FormatInt((longest+spare).Milliseconds(), 10))
}

// deadTopic keeps dead letters without a limit.
func deadTopic() *sarama.TopicDetail { return ownTopic(1, "-1") }

// ownTopic is one of the retries. It overrides the cluster's settings that delete messages.
func ownTopic(partitions int, retention string) *sarama.TopicDetail {
	unlimited, policy := "-1", "delete"
	return &sarama.TopicDetail{
		NumPartitions: int32(partitions), ReplicationFactor: clusterDefault,
		ConfigEntries: map[string]*string{
			"retention.ms": &retention, "retention.bytes": &unlimited, "cleanup.policy": &policy,
		},
	}
}

// checkRetention returns an error for a topic from which Kafka deletes messages before they are due.
func (c *cluster) checkRetention(topic string, longest time.Duration) error {
	settings := map[string]string{}
	err := c.ask(func(admin sarama.ClusterAdmin) error {
		entries, err := admin.DescribeConfig(sarama.ConfigResource{
			Type: sarama.TopicResource, Name: topic,
			ConfigNames: []string{"retention.ms", "retention.bytes", "cleanup.policy"},
		})
		for _, entry := range entries {
			settings[entry.Name] = entry.Value
		}
		return err
	})
	if err != nil {
		warning.Log(c.logger, "The cluster does not show the settings of a topic: make sure that its retention.ms is "+
			"longer than the longest delay", watermill.LogFields{"topic": topic, "longest_delay": longest, "err": err})
		return nil
	}
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
