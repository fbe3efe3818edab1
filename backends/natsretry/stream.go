package natsretry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// scheduling is the level of JetStream's API that has scheduled messages: that of NATS 2.12.
	scheduling = 2

	levelKey   = "_nats.level" // the level of the server that leads a stream, in the metadata of the stream
	versionKey = "_nats.ver"

	setupTimeout = 10 * time.Second
)

// server is a NATS server, with the stream of the retries.
type server struct {
	Config
	js     jetstream.JetStream
	stream string // the stream of the retries
	clock  *clock
}

func newServer(config Config) (*server, error) {
	js, err := jetstream.New(config.Conn)
	if err != nil {
		return nil, err
	}
	s := &server{Config: config, js: js, stream: streamName(config.Prefix)}
	s.clock = newClock(s.leader)
	return s, nil
}

// leader returns the information of the server that leads the stream of the retries.
func (s *server) leader(ctx context.Context) (*jetstream.StreamInfo, error) {
	stream, err := s.js.Stream(ctx, s.stream)
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	return info, scheduled(info.Config)
}

// scheduled refuses a stream without scheduled messages: one that is led by a server which has none.
func scheduled(c jetstream.StreamConfig) error {
	level, _ := strconv.Atoi(c.Metadata[levelKey])
	if c.AllowMsgSchedules && level >= scheduling {
		return nil
	}
	return fmt.Errorf("the stream %s is led by a NATS server of version %q, which has no scheduled messages: upgrade all "+
		"servers of the cluster to 2.12 or later", c.Name, c.Metadata[versionKey])
}

func (s *server) replicas() int {
	switch {
	case s.Replicas > 0:
		return s.Replicas
	case s.Conn.ConnectedClusterName() != "":
		return 3
	default:
		return 1
	}
}

// makeStream makes the stream of the retries where it is missing.
func (s *server) makeStream(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, s.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		stream, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: s.stream, Subjects: []string{s.Prefix + ".>"}, Retention: jetstream.WorkQueuePolicy,
			Replicas: s.replicas(), AllowMsgSchedules: true, AllowRollup: true,
			Description: "messages that wait for a retry, and dead letters",
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			stream, err = s.js.Stream(ctx, s.stream)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot make the stream %s of the retries, with the subjects %s.>: %w", s.stream, s.Prefix, err)
	}
	config := stream.CachedInfo().Config
	if err := s.check(config); err != nil {
		return err
	}
	if !config.AllowMsgSchedules {
		config.AllowMsgSchedules, config.AllowRollup, config.DenyPurge = true, true, false
		if stream, err = s.js.UpdateStream(ctx, config); err != nil {
			return fmt.Errorf("cannot allow scheduled messages in the stream %s: %w", s.stream, err)
		}
	}
	return scheduled(stream.CachedInfo().Config)
}

// check refuses a stream that would lose or hide messages, or does not take or remove them.
func (s *server) check(c jetstream.StreamConfig) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(c.Subjects) != 1 || c.Subjects[0] != s.Prefix+".>" {
		fault("its subjects are %q: they must be %q", c.Subjects, s.Prefix+".>")
	}
	if c.Retention != jetstream.WorkQueuePolicy {
		fault("its retention is %v: it must be WorkQueue, which deletes what is acknowledged", c.Retention)
	}
	if c.Storage != jetstream.FileStorage {
		fault("its storage is %v, which a restart of the server empties: it must be File", c.Storage)
	}
	if c.PersistMode == jetstream.AsyncPersistMode {
		fault("its PersistMode is async, and a server that is killed loses what it has confirmed: it must be default, " +
			"which needs a new stream")
	}
	if t := c.SubjectTransform; t != nil {
		fault("its SubjectTransform from %q to %q stores messages under subjects that no consumer reads: remove it",
			t.Source, t.Destination)
	}
	if c.MaxAge > 0 {
		fault("its MaxAge is %v, and messages that wait longer are deleted: it must be 0", c.MaxAge)
	}
	if c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0 {
		fault("it has a limit, at which it deletes messages that wait: MaxMsgs, MaxBytes and MaxMsgsPerSubject must be -1. " +
			"A limit of the account refuses new ones")
	}
	if c.MaxMsgSize > 0 {
		fault("its MaxMsgSize is %d, and a copy is larger than its message: it must be -1", c.MaxMsgSize)
	}
	if c.Discard == jetstream.DiscardNew {
		fault("its Discard is New, with which NATS schedules no messages: it must be Old")
	}
	if c.NoAck {
		fault("NoAck is true, so a publisher gets no answer that a message is stored: it must be false")
	}
	if c.DenyDelete {
		fault("its DenyDelete is true, and a dead letter that was redriven cannot be removed: it must be false, which " +
			"needs a new stream")
	}
	if len(faults) > 0 {
		return fmt.Errorf("the stream %s exists and cannot have the retries. Change it, or set another Prefix: %w",
			s.stream, errors.Join(faults...))
	}
	return nil
}

// streamOf returns the stream of a topic, and makes it where no stream has that subject.
func (s *server) streamOf(ctx context.Context, topic string) (string, error) {
	if s.names().IsOwn(topic) {
		return s.stream, nil
	}
	name, err := s.js.StreamNameBySubject(ctx, topic)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return name, err
	}
	name = streamName(topic)
	_, err = s.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{topic}, Replicas: s.replicas(),
	})
	if err != nil { // another process was faster, or another stream has the name
		if known, _ := s.js.StreamNameBySubject(ctx, topic); known != "" {
			return known, nil
		}
		return "", fmt.Errorf("cannot make the stream %s with the subject %q: %w", name, topic, err)
	}
	return name, nil
}

// makeConsumer makes the consumer of a group on a topic where it is missing. Messages that are published from then on
// wait for the group.
func (s *server) makeConsumer(ctx context.Context, group, topic string) (stream, durable string, err error) {
	if s.names().IsOwn(topic) {
		group = ""
	}
	if stream, err = s.streamOf(ctx, topic); err != nil {
		return "", "", fmt.Errorf("cannot find or make a stream with the subject %q: %w", topic, err)
	}
	durable = durableName(group, topic)
	_, err = s.js.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: durable, FilterSubject: topic, AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.Lease,
		MaxDeliver: -1, MaxAckPending: -1, MaxWaiting: maxWaiting,
	})
	if err != nil {
		return "", "", fmt.Errorf("cannot make the consumer %s of the stream %s for the subject %q: %w", durable, stream,
			topic, err)
	}
	return stream, durable, nil
}

// maxWaiting bounds the processes that wait for messages of one topic. The server's default is 512.
const maxWaiting = 8192
