package kafkaretry

import (
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

// Config configures Connect and Letters. Letters needs only Brokers, Sarama and Prefix.
type Config struct {
	// Brokers are addresses of the cluster, each host:port. Required.
	Brokers []string

	// Sarama is the configuration of the client, for TLS, SASL and the version. It is copied and never modified. On the
	// copies Connect sets what prevents losses: Producer.RequiredAcks to WaitForAll, Consumer.Offsets.Initial to
	// OffsetOldest, and Consumer.Group.ResetInvalidOffsets. It also sets Consumer.IsolationLevel to ReadCommitted,
	// Producer.Return and Consumer.Return, and replaces these times where they have sarama's default: of
	// Consumer.Group, Session.Timeout is 6 s, Heartbeat.Interval 1 s, Rebalance.Timeout 25 s and
	// Rebalance.Retry.Backoff 250 ms; Consumer.Offsets.AutoCommit.Interval is 200 ms. Nil is watermill-kafka's
	// configuration with version 2.2.
	Sarama *sarama.Config

	// Group is the name of the service, and the consumer group of the handlers whose retry.Options have none. Required.
	// Each topic has a consumer group of its own in Kafka, "<Group>.<topic>", with a hash at its end where the Group has
	// a dot, or the name is longer than 150 bytes.
	Group string

	// Policy decides about failures of all handlers without a policy of their own. Its Schedule is required.
	Policy retry.Policy

	// RetiredSchedule has the delays of earlier schedules whose tiers may still contain messages, with the lanes of a
	// Jitter: they are emptied, and no new message goes there. The default is none.
	RetiredSchedule backoff.Schedule

	// Prefix is the start of the names of tiers, return topics and dead-letter topics: at most 40 characters, each a
	// letter, a digit, a dot, an underscore or a hyphen. The default is "retry". Services with the same prefix share
	// their tiers, and nothing else.
	Prefix string
}

// plainConfig is a Config without its methods.
type plainConfig Config

// Format implements fmt.Formatter. It prints the configuration whatever the verb as %v does: with a wrong verb, fmt
// prints what a pointer leads to, here the password of Sarama.
func (c Config) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), plainConfig(c))
}

// Validate reports all faults of the configuration in one error. It does not connect.
func (c Config) Validate() error {
	var all []error
	fault := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	if err := c.validateClient(); err != nil {
		all = append(all, err)
	}
	if c.Group == "" {
		fault("Group is empty: set it to the name of the service")
	}
	all = append(all, faults.In("Policy", options.Relayed(c.Policy)))
	if len(c.RetiredSchedule) > 0 {
		all = append(all, faults.Of("RetiredSchedule", c.RetiredSchedule.Validate()))
	}
	return errors.Join(all...)
}

// validateClient reports the faults of what Letters needs.
func (c Config) validateClient() error {
	var all []error
	if len(c.Brokers) == 0 {
		all = append(all, errors.New("Brokers is empty: set addresses of the cluster, such as kafka-1:9092"))
	}
	for _, client := range []*sarama.Config{c.producer(), c.consumer()} {
		if err := client.Validate(); err != nil {
			all = append(all, faults.Of("Sarama", err))
			break
		}
	}
	if err := c.names().Validate(); err != nil {
		all = append(all, err)
	}
	return errors.Join(all...)
}

func (c Config) names() relaytopic.Names { return relaytopic.Names{Prefix: c.Prefix} }

// producer waits for all in-sync replicas: a message that only the leader has stored is lost if it fails. The producer
// is not idempotent. Idempotence prevents duplicates, which are allowed, and costs one request in flight per broker.
func (c Config) producer() *sarama.Config {
	own := c.client(kafka.DefaultSaramaSyncPublisherConfig)
	own.Producer.RequiredAcks = sarama.WaitForAll
	own.Producer.Return.Successes, own.Producer.Return.Errors = true, true
	return own
}

// copies is producer for copies. A topic of the retries that the producer makes would have the cluster's retention.
func (c Config) copies() *sarama.Config {
	own := c.producer()
	own.Metadata.AllowAutoTopicCreation = false
	return own
}

// largestCopy is the limit of a client for copies that are published alone. A request has room for its other fields.
const largestCopy = 100<<20 - 64<<10

// alone is copies with one message in each request, and without the limit of the app for its own messages: only the
// broker decides which message does not fit.
func (c Config) alone() *sarama.Config {
	own := c.copies()
	own.Producer.MaxMessageBytes = largestCopy
	flush := &own.Producer.Flush
	flush.MaxMessages, flush.Messages, flush.Bytes, flush.Frequency = 1, 0, 0, 0
	return own
}

// asks is consumer for what asks the cluster. A cluster that answers does so much earlier.
func (c Config) asks() *sarama.Config {
	own := c.consumer()
	own.Metadata.AllowAutoTopicCreation = false
	for _, timeout := range []*time.Duration{
		&own.Net.DialTimeout, &own.Net.ReadTimeout, &own.Net.WriteTimeout, &own.Admin.Timeout,
	} {
		*timeout = min(*timeout, looksTimeout)
	}
	if own.Metadata.Timeout == 0 {
		own.Metadata.Timeout = looksTimeout
	}
	return own
}

// The times of consumer groups.
const (
	// sessionTimeout is how long the partitions of a process that was killed have no reader. It is the shortest that a
	// cluster accepts by default, group.min.session.timeout.ms.
	sessionTimeout = 6 * time.Second

	// heartbeat is how long a process does not know that another one has joined or left, at most.
	heartbeat = time.Second

	// rejoinPause is how long a process waits that has to join again, because another one has joined or left meanwhile.
	rejoinPause = 250 * time.Millisecond

	// commitInterval is how much comes twice after a SIGKILL. A partition without new acknowledgements sends none.
	commitInterval = 200 * time.Millisecond

	// rebalanceTimeout is how long a rebalance waits for calls of a handler. sarama gives up a join after its
	// Net.ReadTimeout, 30 seconds.
	rebalanceTimeout = 25 * time.Second
)

func (c Config) consumer() *sarama.Config {
	own := c.client(kafka.DefaultSaramaSubscriberConfig)
	own.Consumer.Return.Errors = true
	own.Consumer.IsolationLevel = sarama.ReadCommitted // what another producer has aborted is no message
	own.Consumer.Offsets.Initial = sarama.OffsetOldest // a new group also gets what was published before it subscribed
	own.Consumer.Group.ResetInvalidOffsets = true      // what is settled may be deleted before its offset is stored
	better := func(timeout *time.Duration, of, to time.Duration) {
		if *timeout == of {
			*timeout = to
		}
	}
	group, stock := &own.Consumer.Group, sarama.NewConfig().Consumer.Group
	better(&group.Session.Timeout, stock.Session.Timeout, sessionTimeout)
	better(&group.Heartbeat.Interval, stock.Heartbeat.Interval, heartbeat)
	better(&group.Rebalance.Timeout, stock.Rebalance.Timeout, rebalanceTimeout)
	better(&group.Rebalance.Retry.Backoff, stock.Rebalance.Retry.Backoff, rejoinPause)
	better(&own.Consumer.Offsets.AutoCommit.Interval, time.Second, commitInterval)
	return own
}

// tier is consumer for a tier. Without AutoCommit, watermill-kafka commits each message of a handler, and nothing those
// of a tier. A cooperative rebalance takes a partition without an end of the session: what waits would hold it up.
func (c Config) tier() *sarama.Config {
	own := c.consumer()
	own.Consumer.Offsets.AutoCommit.Enable = true
	own.Metadata.AllowAutoTopicCreation = false
	own.Consumer.Group.Rebalance.Strategy = nil // deprecated; sarama prefers it
	own.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	return own
}

// client returns a copy of the app's configuration, or that of watermill-kafka.
func (c Config) client(watermills func() *sarama.Config) *sarama.Config {
	if c.Sarama == nil {
		own := watermills()
		own.Version = sarama.V2_2_0_0
		return own
	}
	own := *c.Sarama
	return &own
}
