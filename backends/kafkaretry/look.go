package kafkaretry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

var _ operate.Looker = reader{}

// own returns the topics of the prefix, sorted.
func (r reader) own() ([]string, error) {
	if err := r.client.RefreshMetadata(); err != nil {
		return nil, err
	}
	topics, err := r.client.Topics()
	topics = slices.DeleteFunc(topics, func(topic string) bool { return !r.config.names().IsOwn(topic) })
	slices.Sort(topics)
	return topics, err
}

// Keys implements operate.Looker. The first subscription of a group makes its dead-letter topic.
func (r reader) Keys(context.Context) (keys []string, err error) {
	topics, err := r.own()
	for _, topic := range topics {
		if key, is := strings.CutPrefix(topic, r.config.names().Dead("")); is {
			keys = append(keys, key)
		}
	}
	return keys, err
}

// Waiting implements operate.Looker. What waits for a delay is on the tiers, of all groups together.
func (r reader) Waiting(ctx context.Context) (all []operate.Waiting, err error) {
	admin, err := sarama.NewClusterAdminFromClient(r.client)
	if err != nil {
		return nil, err
	}
	topics, err := r.own()
	if err != nil {
		return nil, err
	}
	names := r.config.names()
	for _, topic := range topics {
		key, dead := strings.CutPrefix(topic, names.Dead(""))
		tier, is := r.tierOf(topic)
		switch {
		case is:
			w := operate.Waiting{Name: "tier " + tier.String()}
			if err := r.onTier(ctx, admin, topic, &w); err != nil {
				return nil, err
			}
			all = append(all, w)
		case dead:
			w := operate.Waiting{Name: key}
			end, err := r.End(ctx, topic)
			if err != nil {
				return nil, err
			}
			w.Dead = end.Count
			group, _, _ := strings.Cut(key, ".")
			from, next, err := r.unsettled(admin, relaytopic.Key(group, names.Return(key)), names.Return(key))
			if err != nil {
				return nil, err
			}
			w.Retries = messagesBetween(from, next)
			if _, known := topicOf(key); known {
				if w.Consumers, err = members(admin, key); err != nil {
					return nil, err
				}
			}
			all = append(all, w)
		}
	}
	return all, nil
}

func (r reader) tierOf(topic string) (backoff.Tier, bool) {
	tier, err := backoff.ParseTier(strings.TrimPrefix(topic, strings.TrimSuffix(r.config.names().Dead(""), "dead.")))
	return tier, err == nil
}

// onTier adds what waits on a tier. The first message of a partition is the first that is due: a tier has one delay.
// Settled messages are before it until they are deleted.
func (r reader) onTier(ctx context.Context, admin sarama.ClusterAdmin, topic string, w *operate.Waiting) error {
	from, next, err := r.unsettled(admin, relayGroup+"."+topic, topic)
	if err != nil {
		return err
	}
	if w.Retries = messagesBetween(from, next); w.Retries == 0 {
		return nil
	}
	if w.Consumers, err = members(admin, relayGroup+"."+topic); err != nil {
		return err
	}
	for i := range from {
		after := slices.Clone(next)
		after[i] = from[i]
		first, err := r.Read(ctx, topic, joinOffsets(after), joinOffsets(next), 1)
		if err != nil {
			return err
		}
		if len(first) == 0 {
			continue
		}
		record, _ := retry.ReadRecord(first[0].Message.Metadata)
		at := record.DueAt
		if at.IsZero() {
			continue
		}
		if w.NextDue.IsZero() || at.Before(w.NextDue) {
			w.NextDue = at
		}
		if time.Since(at) > operate.OverdueAfter {
			w.Overdue++ // and perhaps those behind it
		}
	}
	return nil
}

// unsettled returns the offsets of each partition between which a consumer group has not committed the messages.
func (r reader) unsettled(admin sarama.ClusterAdmin, group, topic string) (from, next []int64, err error) {
	from, err = r.offsets(topic, sarama.OffsetOldest)
	if errors.Is(err, letters.ErrNoQueue) {
		return nil, nil, nil
	}
	if err == nil {
		next, err = r.offsets(topic, sarama.OffsetNewest)
	}
	if err != nil {
		return nil, nil, err
	}
	from = from[:min(len(from), len(next))]
	partitions := make([]int32, len(from))
	for i := range partitions {
		partitions[i] = int32(i)
	}
	committed, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
	if err != nil {
		return nil, nil, err
	}
	refused := committed.Err
	for i := range from {
		if block := committed.GetBlock(topic, int32(i)); block != nil {
			from[i] = min(max(from[i], block.Offset), next[i])
			refused = cmp.Or(refused, block.Err)
		}
	}
	if refused != sarama.ErrNoError {
		return nil, nil, fmt.Errorf("cannot read the offsets of the consumer group %q: %w "+
			"(docs/other-pubsubs.md#rights-on-kafka)", group, refused)
	}
	return from, next[:len(from)], nil
}

func messagesBetween(from, next []int64) (messages int) {
	for i := range from {
		messages += int(next[i] - from[i])
	}
	return messages
}

// members returns how many members a consumer group has, or nil where the user may not see them.
func members(admin sarama.ClusterAdmin, group string) (*int, error) {
	found, err := admin.DescribeConsumerGroups([]string{group})
	if err != nil || len(found) != 1 || found[0].Err != sarama.ErrNoError {
		return nil, err
	}
	count := len(found[0].Members)
	return &count, nil
}

// Check implements operate.Looker.
func (r reader) Check(ctx context.Context) (checked operate.Checked, err error) {
	checked.Server = fmt.Sprintf("Kafka with %d brokers", len(r.client.Brokers()))
	admin, err := sarama.NewClusterAdminFromClient(r.client)
	if err != nil {
		return checked, err
	}
	topics, err := r.own()
	if err != nil {
		return checked, err
	}
	longest := time.Duration(0)
	for _, topic := range topics {
		if tier, is := r.tierOf(topic); is {
			longest = max(longest, time.Duration(tier))
		}
	}
	described, err := admin.DescribeTopics(topics)
	if err != nil {
		return checked, err
	}
	for _, topic := range described {
		if replicas := checkShown(&checked, topic); replicas > 0 {
			if err := r.readSettings(admin, &checked, topic.Name, replicas, longest); err != nil {
				return checked, err
			}
		}
	}
	waiting, err := r.Waiting(ctx)
	if err != nil {
		return checked, err
	}
	checkConsumers(&checked, waiting)
	return checked, r.checkTopics(admin, &checked, waiting)
}

// checkTopics looks for the topics of the app, as far as their names are known.
func (r reader) checkTopics(admin sarama.ClusterAdmin, checked *operate.Checked, waiting []operate.Waiting) error {
	readers := map[string]operate.Waiting{}
	for _, w := range waiting {
		if topic, known := topicOf(w.Name); known {
			readers[topic] = w
		}
	}
	if len(readers) == 0 { // of no topic, Kafka describes all
		return nil
	}
	described, err := admin.DescribeTopics(slices.Sorted(maps.Keys(readers)))
	for _, topic := range described {
		checkRead(checked, topic, readers[topic.Name])
	}
	return err
}

// topicOf returns the topic of a key that has no hash.
func topicOf(key string) (topic string, known bool) {
	group, topic, _ := strings.Cut(key, ".")
	return topic, topic != "" && relaytopic.Key(group, topic) == key
}

// checkRead looks for a topic that a consumer group reads. It may have no reader any more.
func checkRead(checked *operate.Checked, topic *sarama.TopicMetadata, w operate.Waiting) {
	if topic.Err == sarama.ErrUnknownTopicOrPartition && (w.Consumers == nil || *w.Consumers > 0) {
		checked.Found("missing", "topic "+topic.Name, "it does not exist, so the handlers of "+w.Name+" get no message",
			"kafka-topics.sh --create --topic "+topic.Name)
	}
}

// checkShown returns how many replicas a topic has, or 0 where it is not shown.
func checkShown(checked *operate.Checked, topic *sarama.TopicMetadata) (replicas int) {
	if topic.Err != sarama.ErrNoError {
		checked.Found("acls", "topic "+topic.Name, topic.Err.Error(), "docs/other-pubsubs.md#rights-on-kafka")
		return 0
	}
	for _, partition := range topic.Partitions {
		replicas = max(replicas, len(partition.Replicas))
		if partition.Leader < 0 {
			checked.Found("leader", "topic "+topic.Name, fmt.Sprintf("partition %d has no leader: what waits there stops",
				partition.ID), "look at the brokers, and at those that are down")
		}
	}
	return replicas
}

// readSettings compares the settings of a topic with what the retries need.
func (r reader) readSettings(
	admin sarama.ClusterAdmin, checked *operate.Checked, topic string, replicas int, longest time.Duration,
) error {
	entries, err := admin.DescribeConfig(sarama.ConfigResource{
		Type: sarama.TopicResource, Name: topic,
		ConfigNames: []string{"retention.ms", "retention.bytes", "cleanup.policy", "min.insync.replicas"},
	})
	if err != nil && answered(err) {
		checked.Unseen = append(checked.Unseen, "the settings of topic "+topic+": "+err.Error()+
			" (docs/other-pubsubs.md#rights-on-kafka)")
		return nil
	}
	settings := map[string]string{}
	for _, entry := range entries {
		settings[entry.Name] = entry.Value
	}
	if err == nil {
		t := topicSettings{topic, r.config.names().IsDead(topic), replicas, len(r.client.Brokers()), settings}
		t.check(checked, longest)
	}
	return err
}

// topicSettings are what the rules look at.
type topicSettings struct {
	topic             string
	dead              bool // it has dead letters
	replicas, brokers int
	settings          map[string]string
}

// check applies the rules. longest is the longest delay.
func (t topicSettings) check(checked *operate.Checked, longest time.Duration) {
	dead, replicas, settings := t.dead, t.replicas, t.settings
	found := func(rule, what, name, value string) {
		checked.Found(rule, "topic "+t.topic, what,
			"kafka-configs.sh --alter --topic "+t.topic+" --add-config "+name+"="+value)
	}
	milliseconds, _ := strconv.ParseInt(settings["retention.ms"], 10, 64)
	switch retention := time.Duration(milliseconds) * time.Millisecond; {
	case dead && milliseconds > 0:
		found("retention", fmt.Sprintf("Kafka deletes its dead letters after %v", retention), "retention.ms", "-1")
	case !dead && milliseconds > 0 && retention <= longest:
		found("retention", fmt.Sprintf("Kafka deletes its messages after %v, and they wait for up to %v", retention, longest),
			"retention.ms", strconv.FormatInt((longest+spare).Milliseconds(), 10))
	}
	if limit := settings["retention.bytes"]; limit != "" && limit != "-1" {
		found("retention", "Kafka deletes its oldest messages at "+limit+" bytes of a partition", "retention.bytes", "-1")
	}
	if strings.Contains(settings["cleanup.policy"], "compact") {
		found("retention", "it is compacted, and Kafka refuses copies there, because they have no key", "cleanup.policy",
			"delete")
	}
	least, _ := strconv.Atoi(settings["min.insync.replicas"])
	switch {
	case replicas > 1 && least >= replicas:
		found("insync", fmt.Sprintf("min.insync.replicas is %d of %d replicas: without one broker nothing can be published",
			least, replicas), "min.insync.replicas", strconv.Itoa(replicas-1))
	case replicas > 2 && least == 1:
		found("insync", "min.insync.replicas is 1: the failure of one broker can lose what was published",
			"min.insync.replicas", "2")
	case replicas == 1 && t.brokers > 1:
		checked.Found("insync", "topic "+t.topic, "it has one replica: what waits stops, or is lost, with its broker",
			"kafka-reassign-partitions.sh, or default.replication.factor before the app makes its topics")
	}
}

// checkConsumers looks for what waits and has no reader.
func checkConsumers(checked *operate.Checked, waiting []operate.Waiting) {
	for _, w := range waiting {
		if w.Retries > 0 && w.Consumers != nil && *w.Consumers == 0 {
			checked.Found("lag", w.Name, fmt.Sprintf("%d messages wait, and its consumer group has no member", w.Retries),
				"start an app of this prefix")
		}
	}
}
