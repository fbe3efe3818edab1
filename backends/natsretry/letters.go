package natsretry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// Letters returns the dead letters of all groups with a Prefix, or an error that reports all faults of the
// configuration. It needs neither Group nor Policy. It makes nothing but the bucket "<Prefix>-locks", for the first
// call of Redrive or Discard. The letters of a group and a topic are on "<Prefix>.dead.<group>.<topic>"; a long
// name, or one with other characters, ends with a hash. Close leaves Config.Conn open. A nil logger logs nothing.
func Letters(config Config, logger watermill.LoggerAdapter) (letters.Store, error) {
	if err := errors.Join(config.faults()...); err != nil {
		return nil, faults.Of("invalid natsretry.Config", err)
	}
	config = config.withDefaults()
	s, err := newServer(config)
	if err != nil {
		return nil, err
	}
	return relayletters.Open(relayletters.Config{
		Publisher: copyPublisher{server: s, links: newLinks(config.Conn)}, Reader: &reader{server: s}, Prefix: config.Prefix,
	})
}

// reader reads the subjects of dead-letter topics, without a consumer. A position is the sequence of a message in the
// stream.
type reader struct {
	*server
	streams sync.Map // the streams that were found, by topic
}

// streamWith returns the stream of a topic.
func (r *reader) streamWith(ctx context.Context, topic string) (jetstream.Stream, error) {
	if known, found := r.streams.Load(topic); found {
		return known.(jetstream.Stream), nil
	}
	name := r.stream
	if !r.names().IsOwn(topic) {
		var err error
		if name, err = r.js.StreamNameBySubject(ctx, topic); err != nil {
			return nil, noQueue(topic, err)
		}
	}
	stream, err := r.js.Stream(ctx, name)
	if err != nil {
		return nil, noQueue(topic, err)
	}
	r.streams.Store(topic, stream)
	return stream, nil
}

// noQueue returns the error of a topic without a stream, as relayletters reads it.
func noQueue(topic string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("topic %q: %w", topic, letters.ErrNoQueue)
	}
	return err
}

// End implements relayletters.Reader.
func (r *reader) End(ctx context.Context, topic string) (relayletters.End, error) {
	stream, err := r.streamWith(ctx, topic)
	if err != nil {
		return relayletters.End{}, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(topic))
	if err != nil {
		return relayletters.End{}, noQueue(topic, err)
	}
	return relayletters.End{
		Position: strconv.FormatUint(info.State.LastSeq, 10), Count: int(info.State.Subjects[topic]),
	}, nil
}

// Read implements relayletters.Reader.
func (r *reader) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
	stream, err := r.streamWith(ctx, topic)
	if err != nil {
		return nil, err
	}
	next, err := sequence(after)
	if err != nil {
		return nil, err
	}
	last, err := sequence(until)
	if err != nil {
		return nil, err
	}
	var found []relayletters.Stored
	for len(found) < limit {
		raw, err := stream.GetMsg(ctx, next+1, jetstream.WithGetMsgSubject(topic))
		if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && until != "" && raw.Sequence > last {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		// A letter whose metadata cannot be read in part is a letter, too.
		msg, _ := unmarshalCopy(&nats.Msg{Subject: raw.Subject, Header: raw.Header, Data: raw.Data})
		found = append(found, relayletters.Stored{Position: strconv.FormatUint(raw.Sequence, 10), Message: msg})
		next = raw.Sequence
	}
	return found, nil
}

// sequence reads a position. An empty one is 0.
func sequence(position string) (uint64, error) {
	if position == "" {
		return 0, nil
	}
	return strconv.ParseUint(position, 10, 64)
}

// Remove implements relayletters.Reader.
func (r *reader) Remove(ctx context.Context, topic, position string) error {
	number, err := sequence(position)
	if err != nil {
		return err
	}
	stream, err := r.streamWith(ctx, topic)
	if err != nil {
		return err
	}
	if err = stream.DeleteMsg(ctx, number); err == nil {
		return nil
	}
	// the error of DeleteMsg has no code
	if _, gone := stream.GetMsg(ctx, number); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// HasHandler looks for a consumer of the subject, or of all subjects of its stream: the first subscription makes it.
func (r *reader) HasHandler(ctx context.Context, topic string) (bool, error) {
	stream, err := r.streamWith(ctx, topic)
	if errors.Is(err, letters.ErrNoQueue) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if r.names().IsOwn(topic) { // its only consumer has this name
		_, err := stream.Consumer(ctx, durableName("", topic))
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	consumers := stream.ListConsumers(ctx)
	found := false
	for consumer := range consumers.Info() {
		subject := consumer.Config.FilterSubject
		found = found || subject == topic || subject == "" && len(consumer.Config.FilterSubjects) == 0
	}
	return found, consumers.Err()
}

// Close leaves the connection open, which is the app's.
func (*reader) Close() error { return nil }
