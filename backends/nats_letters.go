package backends

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
)

// natsLetters reads the subjects of dead-letter topics, without a consumer: a stream of the retries permits only one
// for each subject (WorkQueuePolicy), and that is for the app's own reader. A position is the sequence of a message in
// the stream.
type natsLetters struct {
	connection *nats.Conn
	js         jetstream.JetStream
	prefix     string
	lease      time.Duration
	streams    sync.Map // by topic
}

func newNATSLetters(url string, app App) (relayletters.Reader, error) {
	connection, err := nats.Connect(url)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to NATS: %w", err)
	}
	js, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return nil, err
	}
	return &natsLetters{connection: connection, js: js, prefix: app.Prefix, lease: app.lease()}, nil
}

func (n *natsLetters) stream(ctx context.Context, topic string) (jetstream.Stream, error) {
	if known, found := n.streams.Load(topic); found {
		return known.(jetstream.Stream), nil
	}
	name, err := n.js.StreamNameBySubject(ctx, topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, errNoQueue(topic)
	}
	if err != nil {
		return nil, err
	}
	stream, err := n.js.Stream(ctx, name)
	if err == nil {
		n.streams.Store(topic, stream)
	}
	return stream, err
}

func (n *natsLetters) End(ctx context.Context, topic string) (relayletters.End, error) {
	stream, err := n.stream(ctx, topic)
	if err != nil {
		return relayletters.End{}, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(topic))
	if err != nil {
		return relayletters.End{}, err
	}
	return relayletters.End{Position: strconv.FormatUint(info.State.LastSeq, 10),
		Count: int(info.State.Subjects[topic])}, nil
}

// transport are the headers that the server adds to what is read.
var transport = []string{jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer,
	jetstream.SubjectHeader}

func (n *natsLetters) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
	stream, err := n.stream(ctx, topic)
	if err != nil {
		return nil, err
	}
	var next, last uint64
	for _, bound := range []struct {
		position string
		sequence *uint64
	}{{after, &next}, {until, &last}} {
		if bound.position == "" {
			continue
		}
		if *bound.sequence, err = strconv.ParseUint(bound.position, 10, 64); err != nil {
			return nil, err
		}
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
		for _, header := range transport {
			raw.Header.Del(header)
		}
		position := strconv.FormatUint(raw.Sequence, 10)
		msg, err := (&wmnats.NATSMarshaler{}).Unmarshal(&nats.Msg{Subject: raw.Subject, Header: raw.Header,
			Data: raw.Data})
		if err != nil {
			return nil, errUnreadable(topic, position, err)
		}
		found, next = append(found, stored(position, msg)), raw.Sequence
	}
	return found, nil
}

func (n *natsLetters) Remove(ctx context.Context, topic, position string) error {
	sequence, err := strconv.ParseUint(position, 10, 64)
	if err != nil {
		return err
	}
	stream, err := n.stream(ctx, topic)
	if err != nil {
		return err
	}
	if err = stream.DeleteMsg(ctx, sequence); err == nil {
		return nil
	}
	// the error of DeleteMsg has no code
	if _, gone := stream.GetMsg(ctx, sequence); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil
	}
	return err
}

// HasHandler looks for a consumer of the subject, or of all subjects of the stream: the first subscription makes it.
func (n *natsLetters) HasHandler(ctx context.Context, topic string) (bool, error) {
	stream, err := n.stream(ctx, topic)
	if err != nil {
		return false, err
	}
	consumers := stream.ListConsumers(ctx)
	found := false
	for consumer := range consumers.Info() {
		subject := consumer.Config.FilterSubject
		found = found || subject == topic || subject == "" && len(consumer.Config.FilterSubjects) == 0
	}
	return found, consumers.Err()
}

func lockBucket(prefix string) string { return streamName(prefix) + "-locks" }

// Lock is a key of a bucket whose keys end after the lease. It makes the bucket where it is missing.
func (n *natsLetters) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	bucket, err := n.js.CreateOrUpdateKeyValue(ctx,
		jetstream.KeyValueConfig{Bucket: lockBucket(n.prefix), TTL: n.lease})
	if err != nil {
		return nil, nil, fmt.Errorf("cannot create the bucket of the locks: %w", err)
	}
	key := hex.EncodeToString([]byte(topic))
	revision, err := bucket.Create(ctx, key, nil)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return nil, nil, errBusy(topic)
	}
	if err != nil {
		return nil, nil, err
	}
	held, release := hold(ctx, n.lease, func(ctx context.Context) error {
		updated, err := bucket.Update(ctx, key, nil, revision)
		switch {
		case errors.Is(err, nats.ErrTimeout): // it is not a net.Error
			return context.DeadlineExceeded
		case err == nil:
			revision = updated
		}
		return err
	}, func(ctx context.Context) error { return bucket.Delete(ctx, key, jetstream.LastRevision(revision)) })
	return held, release, nil
}

func (n *natsLetters) Close() error {
	n.connection.Close()
	return nil
}
