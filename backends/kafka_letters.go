package backends

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// kafkaLetters reads the topics of dead letters without a consumer group. Kafka deletes a message only by the topic's
// retention, so nothing can be redriven or discarded, and a letter is there until then. A position is the next offset
// of each partition, separated by commas. The letters of a partition come the oldest first, one partition after the
// other.
type kafkaLetters struct{ client sarama.Client }

// kafkaIdle is how long Read waits for a message that is below the end of its partition. Compaction and transactions
// leave offsets without a message.
const kafkaIdle = 10 * time.Second

func newKafkaLetters(brokers []string) (relayletters.Reader, error) {
	config := kafkaConsumer()
	config.Metadata.AllowAutoTopicCreation = false
	client, err := sarama.NewClient(brokers, config)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to Kafka at %s: %w", strings.Join(brokers, ","), err)
	}
	return kafkaLetters{client}, nil
}

// offsets returns the oldest or the next offset of each partition.
func (k kafkaLetters) offsets(topic string, of int64) ([]int64, error) {
	partitions, err := k.client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) || err == nil && len(partitions) == 0 {
		return nil, errNoQueue(topic)
	}
	if err != nil {
		return nil, err
	}
	all := make([]int64, len(partitions))
	for i := range all {
		if all[i], err = k.client.GetOffset(topic, int32(i), of); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func joinOffsets(all []int64) string {
	texts := make([]string, len(all))
	for i, offset := range all {
		texts[i] = strconv.FormatInt(offset, 10)
	}
	return strings.Join(texts, ",")
}

// splitOffsets reads a position. Partitions that are newer than the position keep the offset of otherwise.
func splitOffsets(position string, otherwise []int64) ([]int64, error) {
	if position == "" {
		return otherwise, nil
	}
	for i, text := range strings.Split(position, ",") {
		offset, err := strconv.ParseInt(text, 10, 64)
		if err != nil || i >= len(otherwise) {
			return nil, fmt.Errorf("the position %q is not the offset of each of %d partitions", position,
				len(otherwise))
		}
		otherwise[i] = offset
	}
	return otherwise, nil
}

func (k kafkaLetters) End(_ context.Context, topic string) (relayletters.End, error) {
	oldest, err := k.offsets(topic, sarama.OffsetOldest)
	if err != nil {
		return relayletters.End{}, err
	}
	next, err := k.offsets(topic, sarama.OffsetNewest)
	if err != nil {
		return relayletters.End{}, err
	}
	end := relayletters.End{Position: joinOffsets(next)}
	for i := range min(len(next), len(oldest)) {
		end.Count += int(next[i] - oldest[i])
	}
	return end, nil
}

func (k kafkaLetters) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
	from, err := k.offsets(topic, sarama.OffsetOldest)
	if err == nil {
		from, err = splitOffsets(after, from)
	}
	if err != nil {
		return nil, err
	}
	to, err := k.offsets(topic, sarama.OffsetNewest)
	if err == nil {
		to, err = splitOffsets(until, to)
	}
	if err != nil {
		return nil, err
	}
	consumer, err := sarama.NewConsumerFromClient(k.client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = consumer.Close() }()
	var found []relayletters.Stored
	for partition := range min(len(from), len(to)) {
		if found, err = k.partition(ctx, consumer, topic, partition, from, to[partition], found, limit); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// partition appends the messages of a partition, from its offset in next on.
func (k kafkaLetters) partition(
	ctx context.Context, consumer sarama.Consumer, topic string, partition int, next []int64, end int64,
	found []relayletters.Stored, limit int,
) ([]relayletters.Stored, error) {
	if len(found) == limit || next[partition] >= end {
		return found, nil
	}
	in, err := consumer.ConsumePartition(topic, int32(partition), next[partition])
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	idle := time.NewTimer(kafkaIdle)
	defer idle.Stop()
	for len(found) < limit && next[partition] < end {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-idle.C:
			next[partition] = end
		case raw, open := <-in.Messages():
			if !open {
				return nil, fmt.Errorf("topic %q: Kafka ended the reading of partition %d", topic, partition)
			}
			if next[partition] = raw.Offset + 1; raw.Offset >= end {
				break
			}
			idle.Reset(kafkaIdle)
			msg, err := kafka.DefaultMarshaler{}.Unmarshal(raw)
			if err != nil {
				return nil, errUnreadable(topic, joinOffsets(next), err)
			}
			found = append(found, stored(joinOffsets(next), msg))
		}
	}
	return found, nil
}

// errKafkaKeeps is why nothing is redriven.
var errKafkaKeeps = fmt.Errorf("%w that can be changed: Kafka removes no single message. Read the dead-letter topic "+
	"with a consumer group of its "+
	"own, and publish letters.Fresh of each letter to its return topic", ErrNoLetters)

// Lock refuses each change before its first message.
func (kafkaLetters) Lock(context.Context, string) (context.Context, func(), error) {
	return nil, nil, errKafkaKeeps
}

func (kafkaLetters) Remove(context.Context, string, string) error { return errKafkaKeeps }

// HasHandler looks for the topic: the first subscription makes it.
func (k kafkaLetters) HasHandler(_ context.Context, topic string) (bool, error) {
	_, err := k.offsets(topic, sarama.OffsetNewest)
	return err == nil, nil
}

func (k kafkaLetters) Close() error { return k.client.Close() }
