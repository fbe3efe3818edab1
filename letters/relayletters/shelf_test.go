package relayletters_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

var errDown = errors.New("the bank is down")

// orderOf returns a message of the app.
func orderOf(uuid string) *message.Message {
	msg := message.NewMessage(uuid, []byte{0, 0xff, 'o'})
	msg.Metadata = message.Metadata{"trace": "abc", "odd": "\xff\x00"}
	return msg
}

const deadTopic = "retry.dead.billing"

// shelf is a gochannel that keeps dead letters, and the relayletters.Reader of them.
type shelf struct {
	*gochannel.GoChannel

	mu       sync.Mutex
	kept     map[string][]relayletters.Stored // by topic
	last     int
	handlers map[string]bool // topics with a handler
	busy     bool
	lose     context.CancelCauseFunc // ends the lock
	removing error
	read     func() // before each Read
	reading  error  // of the next Read, beside what it has found
	closed   int
}

func newShelf() *shelf {
	return &shelf{
		GoChannel: gochannel.NewGoChannel(gochannel.Config{}, nil), kept: map[string][]relayletters.Stored{}, handlers: map[string]bool{},
	}
}

func position(n int) string { return fmt.Sprintf("%06d", n) }

func (s *shelf) Publish(topic string, messages ...*message.Message) error {
	if !strings.HasPrefix(topic, "retry.dead.") {
		return s.GoChannel.Publish(topic, messages...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, msg := range messages {
		s.last++
		s.kept[topic] = append(s.kept[topic], relayletters.Stored{Position: position(s.last), Message: msg.Copy()})
	}
	return nil
}

func (s *shelf) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	s.handlers[topic] = true
	s.mu.Unlock()
	return s.GoChannel.Subscribe(ctx, topic)
}

func (s *shelf) End(_ context.Context, topic string) (relayletters.End, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept[topic] == nil {
		return relayletters.End{}, fmt.Errorf("topic %q: %w", topic, letters.ErrNoQueue)
	}
	return relayletters.End{Position: position(s.last), Count: len(s.kept[topic])}, nil
}

func (s *shelf) Read(ctx context.Context, topic, after, until string, limit int) ([]relayletters.Stored, error) {
	if s.read != nil {
		s.read()
	}
	if ctx.Err() != nil {
		return nil, errors.New("the connection is closed")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []relayletters.Stored
	for _, stored := range s.kept[topic] {
		if stored.Position > after && (until == "" || stored.Position <= until) && len(found) < limit {
			found = append(found, relayletters.Stored{Position: stored.Position, Message: stored.Message.Copy()})
		}
	}
	failed := s.reading
	s.reading = nil
	return found, failed
}

func (s *shelf) Remove(_ context.Context, topic, position string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing != nil {
		return s.removing
	}
	s.kept[topic] = slices.DeleteFunc(s.kept[topic], func(stored relayletters.Stored) bool { return stored.Position == position })
	return nil
}

func (s *shelf) HasHandler(_ context.Context, topic string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handlers[topic], nil
}

func (s *shelf) Lock(ctx context.Context, topic string) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return nil, nil, fmt.Errorf("topic %q: %w", topic, letters.ErrBusy)
	}
	held, lose := context.WithCancelCause(ctx)
	s.busy, s.lose = true, lose
	return held, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy = false
		lose(nil)
	}, nil
}

func (s *shelf) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

// messages returns what is on a topic, as the IDs of its messages.
func (s *shelf) ids(topic string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := []string{}
	for _, stored := range s.kept[topic] {
		ids = append(ids, stored.Message.UUID)
	}
	return ids
}

// dead puts dead letters of the handler billing on the shelf. Those with an odd number are of another error type.
func (s *shelf) dead(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		msg := orderOf(fmt.Sprintf("%03d", i))
		record := retry.Record{
			Failures: 3, Topic: "orders", Handler: "billing", Reason: fmt.Sprintf("no %d", i), ErrorType: "*errors.errorString",
			DeadReason: retry.DeadReasonExhausted, Subscriber: "gochannel.GoChannel",
		}
		if i%2 == 1 {
			record.ErrorType = "*net.OpError"
		}
		record.Write(msg.Metadata)
		require.NoError(t, s.Publish(deadTopic, msg))
	}
}

// letters returns the store on the shelf.
func (s *shelf) letters(t *testing.T, change ...func(*relayletters.Config)) *relayletters.Store {
	t.Helper()
	config := relayletters.Config{Publisher: s, Reader: s}
	for _, c := range change {
		c(&config)
	}
	store, err := relayletters.Open(config)
	require.NoError(t, err)
	return store
}

// shelfApp is an app on a shelf, whose handler is billing on orders.
func shelfApp(t *testing.T, s *shelf, schedule backoff.Schedule, handle message.NoPublishHandlerFunc) (stop func()) {
	t.Helper()
	connection, err := relay.Connect(relay.Config{
		Publisher: unclosed{s}, Policy: retry.Policy{Schedule: schedule},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return unclosed{s}, nil },
	}, nil)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	connection.AddConsumerHandler(router, "billing", "orders", handle)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	return func() {
		require.NoError(t, router.Close())
		require.NoError(t, <-ended)
		require.NoError(t, connection.Close())
		require.NoError(t, s.GoChannel.Close())
	}
}

// unclosed is a shelf that the app does not close.
type unclosed struct{ *shelf }

func (unclosed) Close() error { return nil }
