package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// errKept is returned by Redrive and Discard of the store of Letters, where they would change something.
var errKept = fmt.Errorf("%w: Kafka removes no single message. To redrive, publish all letters that Browse finds to "+
	"their return topic, and then remove them up to the end that the topic had before, as in the example of Letters in "+
	"package kafkaretry: a consumer that reads on gets those that die again, without an end. To discard, remove all "+
	"letters below an offset with kafka-delete-records.sh, or lower retention.ms of the dead-letter topic",
	errors.ErrUnsupported)

// Letters returns the store of the dead letters, or an error that joins all faults of Brokers, Sarama and Prefix, or
// the reason why it cannot connect. It is safe for concurrent use. Nothing is logged.
//
// The dead letters of a consumer group on a topic are in the topic "<Prefix>.dead.<Group>.<topic>". Browse shows them
// to every caller. It removes none, and consumer groups do not see it: the oldest of a partition come first, one
// partition after the other. Redrive and Discard return an error that wraps errors.ErrUnsupported, except with DryRun:
// Kafka removes no single message from a topic.
//
// A dead-letter topic that Connect has made keeps its letters until an operator removes them, for example with
// kafka-delete-records.sh. One that was there before keeps them for its retention.ms.
func Letters(config Config, _ watermill.LoggerAdapter) (letters.Store, error) {
	if err := config.validateClient(); err != nil {
		return nil, faults.Of("invalid kafkaretry.Config", err)
	}
	own := config.consumer()
	own.Metadata.AllowAutoTopicCreation = false
	client, err := sarama.NewClient(config.Brokers, own)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to Kafka at %q: %w", config.Brokers, err)
	}
	store, err := relayletters.Open(relayletters.Config{
		Publisher: &importer{config: config}, Reader: reader{client, config}, Prefix: config.Prefix,
	})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return store, nil
}

// importer publishes imported letters. It connects with the first one: reader refuses redrives before their first
// message.
type importer struct {
	config Config

	mu    sync.Mutex
	stock *copies
}

// Publish implements message.Publisher.
func (i *importer) Publish(topic string, messages ...*message.Message) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stock == nil {
		c := newCluster(i.config, watermill.NopLogger{})
		stock, err := c.newProducer(i.config.copies)
		if err != nil {
			return err
		}
		i.stock = &copies{cluster: c, stock: stock}
	}
	return i.stock.Publish(topic, messages...)
}

// Close implements message.Publisher.
func (i *importer) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stock == nil {
		return nil
	}
	return i.stock.Close()
}

// reader reads the topics of dead letters without a consumer group. A position is the next offset of each partition,
// separated by commas.
type reader struct {
	client sarama.Client
	config Config
}

// idleTimeout is how long Read waits for a message that is below the end of its partition. Compaction and transactions
// leave offsets without a message.
const idleTimeout = 10 * time.Second

// offsets returns the oldest or the next offset of each partition.
func (r reader) offsets(topic string, of int64) ([]int64, error) {
	partitions, err := r.client.Partitions(topic)
	if errors.Is(err, sarama.ErrUnknownTopicOrPartition) || err == nil && len(partitions) == 0 {
		return nil, fmt.Errorf("topic %q: %w", topic, letters.ErrNoQueue)
	}
	if err != nil {
		return nil, err
	}
	all := make([]int64, len(partitions))
	for i := range all {
		if all[i], err = r.client.GetOffset(topic, int32(i), of); err != nil {
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

// End implements relayletters.Reader.
func (r reader) End(_ context.Context, topic string) (relayletters.End, error) {
	oldest, err := r.offsets(topic, sarama.OffsetOldest)
	if err != nil {
		return relayletters.End{}, err
	}
	next, err := r.offsets(topic, sarama.OffsetNewest)
	if err != nil {
		return relayletters.End{}, err
	}
	end := relayletters.End{Position: joinOffsets(next)}
	for i := range min(len(next), len(oldest)) {
		end.Count += int(next[i] - oldest[i])
	}
	return end, nil
}

// Read implements relayletters.Reader.
func (r reader) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
	from, err := r.offsets(topic, sarama.OffsetOldest)
	if err == nil {
		from, err = splitOffsets(after, from)
	}
	if err != nil {
		return nil, err
	}
	to, err := r.offsets(topic, sarama.OffsetNewest)
	if err == nil {
		to, err = splitOffsets(until, to)
	}
	if err != nil {
		return nil, err
	}
	consumer, err := sarama.NewConsumerFromClient(r.client)
	if err != nil {
		return nil, err
	}
	defer func() { _ = consumer.Close() }()
	var found []relayletters.Stored
	for partition := range min(len(from), len(to)) {
		if found, err = r.partition(ctx, consumer, topic, partition, from, to[partition], found, limit); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// partition appends the messages of a partition, from its offset in next on.
func (r reader) partition(
	ctx context.Context, consumer sarama.Consumer, topic string, partition int, next []int64, end int64,
	found []relayletters.Stored, limit int,
) ([]relayletters.Stored, error) {
	if len(found) == limit || next[partition] >= end {
		return found, nil
	}
	in, err := consumer.ConsumePartition(topic, int32(partition), next[partition])
	if errors.Is(err, sarama.ErrOffsetOutOfRange) {
		return r.behindDeleted(ctx, consumer, topic, partition, next, end, found, limit)
	} else if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	idle := time.NewTimer(idleTimeout)
	defer idle.Stop()
	for len(found) < limit && next[partition] < end {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-idle.C:
			next[partition] = end
		case raw, open := <-in.Messages():
			if !open { // sarama keeps the reason
				return r.behindDeleted(ctx, consumer, topic, partition, next, end, found, limit)
			}
			if next[partition] = raw.Offset + 1; raw.Offset >= end {
				break
			}
			idle.Reset(idleTimeout)
			msg, err := kafka.DefaultMarshaler{}.Unmarshal(raw)
			if err != nil {
				return nil, fmt.Errorf("the message at %s of topic %q cannot be read: %w", joinOffsets(next), topic, err)
			}
			found = append(found, relayletters.Stored{Position: joinOffsets(next), Message: msg})
		}
	}
	return found, nil
}

// behindDeleted goes on behind the messages that were deleted since the offset was read: those that are settled are.
func (r reader) behindDeleted(
	ctx context.Context, consumer sarama.Consumer, topic string, partition int, next []int64, end int64,
	found []relayletters.Stored, limit int,
) ([]relayletters.Stored, error) {
	oldest, err := r.client.GetOffset(topic, int32(partition), sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	if oldest <= next[partition] {
		return nil, fmt.Errorf("topic %q: Kafka ended the reading of partition %d: try again", topic, partition)
	}
	next[partition] = oldest
	return r.partition(ctx, consumer, topic, partition, next, end, found, limit)
}

// Lock refuses each change before its first message.
func (reader) Lock(context.Context, string) (context.Context, func(), error) {
	return nil, nil, errKept
}

// Remove implements relayletters.Reader.
func (reader) Remove(context.Context, string, string) error { return errKept }

// HasHandler looks for the topic: the first subscription makes it.
func (r reader) HasHandler(_ context.Context, topic string) (bool, error) {
	_, err := r.offsets(topic, sarama.OffsetNewest)
	return err == nil, nil
}

// Close implements relayletters.Reader.
func (r reader) Close() error { return r.client.Close() }
