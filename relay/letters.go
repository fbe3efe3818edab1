package relay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/letters"
)

// LettersConfig configures NewLetters. The Publisher and the Topics then belong to the Letters, which closes them.
type LettersConfig struct {
	// Publisher publishes to return topics. Required. As Config.Publisher, it must return nil only when the backend has stored the
	// message, and should obey the deadline of the message's context.
	Publisher message.Publisher

	// Topics reads the dead-letter topics. Required.
	Topics LetterTopics

	// Prefix and GenerateTopic are those of the relay's Config.
	Prefix        string
	GenerateTopic func(TopicParams) (string, error)
}

// LetterTopics reads the topics of a backend without a consumer group, and removes single messages from them. A Subscriber can do
// neither: it gets a message only once, and a message that it does not acknowledge stops those behind it. Its methods are safe for
// concurrent use.
type LetterTopics interface {
	// End returns the end of a topic. A topic that does not exist is letters.ErrNoQueue.
	End(ctx context.Context, topic string) (LetterEnd, error)

	// Read returns the first messages between two positions, the oldest first and at most limit, and removes none. The message at after
	// is not among them, the one at until is. An empty after is the start of the topic, an empty until its present end.
	Read(ctx context.Context, topic, after, until string, limit int) ([]StoredLetter, error)

	// Remove removes the message at a position. One that is gone is no error.
	Remove(ctx context.Context, topic, position string) error

	// HasHandler reports whether a handler has subscribed to a topic: what is published to it then waits for that handler.
	HasHandler(ctx context.Context, topic string) (bool, error)

	// Lock lets one call at a time change a topic. Where another has the lock, the error is letters.ErrBusy. The context that Lock returns
	// ends when the lock is lost. The function gives the lock back. A backend that has no locks returns ctx.
	Lock(ctx context.Context, topic string) (context.Context, func(), error)

	// Close closes the connections.
	Close() error
}

// LetterEnd is the end of a topic.
type LetterEnd struct {
	Position string // of the last message, or one after it. What is published later has a higher position
	Count    int    // of messages
}

// StoredLetter is a message in a topic.
type StoredLetter struct {
	Position string // in the topic
	Message  *message.Message
}

// ErrNoLetters is returned by backends that cannot look at their dead letters, or cannot remove single ones.
var ErrNoLetters = errors.New("this backend has no store of dead letters")

// Validate reports all faults of the configuration in one error.
func (c LettersConfig) Validate() error {
	var faults []error
	if c.Publisher == nil {
		faults = append(faults, errors.New("Publisher is nil: set the publisher of the return topics"))
	}
	if c.Topics == nil {
		faults = append(faults, errors.New("Topics is nil: set what reads the backend's topics; the folder backends has it for several"))
	}
	return errors.Join(faults...)
}

// Letters is the letters.Store of a relay: the dead letters in its dead-letter topics. A letter is there until it is redriven or
// discarded, whatever consumer groups have read it; on a backend that deletes what is acknowledged, a reader that acknowledges a letter
// removes it. It is safe for concurrent use.
//
// Browse keeps the letters away from nothing. It returns those that were there when the loop began.
//
// Redrive publishes each letter to the return topic of the handler that failed, waits until the publisher has returned nil, and then
// removes the letter. Other handlers and consumer groups of the original topic do not receive it. One letter is in flight: a process that
// dies can cause one duplicate, and loses nothing. The letters that are not selected stay as they are, in their order. A letter whose
// return topic has no handler stays, and the error is letters.ErrNoTarget. If the publisher or the backend returns an error, Redrive ends
// with that error.
//
// Discard refuses Discard.Export.
type Letters struct {
	config LettersConfig
	names  Config // Prefix and GenerateTopic

	closed context.Context
	end    context.CancelFunc

	mu    sync.Mutex
	ended bool
	calls sync.WaitGroup // that change a topic
}

var _ letters.Store = (*Letters)(nil)

// NewLetters returns the dead letters of a relay, or an error that reports all faults of the configuration. It does not connect.
func NewLetters(config LettersConfig) (*Letters, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid relay.LettersConfig: %w", err)
	}
	l := &Letters{config: config, names: Config{Prefix: config.Prefix, GenerateTopic: config.GenerateTopic}}
	l.names.setDefaults()
	l.closed, l.end = context.WithCancel(context.Background())
	return l, nil
}

// TopicOf returns the dead-letter topic of a handler, by default "<Prefix>.dead.<handler>". The letters of UnknownHandler are those of
// messages that named no handler.
func (l *Letters) TopicOf(handler string) (string, error) {
	return l.names.topic(TopicParams{Kind: DeadLetterTopic, Handler: handler})
}

// batch is how many letters are read at once.
const batch = 100

// Browse implements letters.Store. The letters stay where they are, for other readers too.
func (l *Letters) Browse(ctx context.Context, topic string, filter letters.Filter) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		if err := filter.Validate(); err != nil {
			yield(nil, err)
			return
		}
		ctx, release := l.use(ctx)
		defer release()
		if l.closed.Err() != nil {
			yield(nil, letters.ErrClosed)
			return
		}
		end, err := l.config.Topics.End(ctx, topic)
		for after := ""; ; {
			var found []StoredLetter
			if err == nil {
				found, err = l.config.Topics.Read(ctx, topic, after, end.Position, batch)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(nil, l.cause(ctx, err))
				return
			}
			for _, stored := range found {
				if ctx.Err() != nil {
					break
				}
				letter := l.letter(topic, stored.Message)
				if filter.Match(letter, time.Now()) && !yield(letter, nil) {
					return
				}
				after = stored.Position
			}
			if len(found) == 0 {
				return
			}
		}
	}
}

// use returns a context that ends with the Letters, too.
func (l *Letters) use(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.closed, func() { cancel(letters.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// cause returns why a call ended, in place of the error that its end caused.
func (l *Letters) cause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case l.closed.Err() != nil:
		return letters.ErrClosed
	case cause == nil:
		return err
	case errors.Is(cause, ctx.Err()):
		return cause
	default:
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
}

// begin counts a call that changes a topic. Close waits for it.
func (l *Letters) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return letters.ErrClosed
	}
	l.calls.Add(1)
	return nil
}

// Close ends all calls. It waits for those of Redrive and Discard, so do not call it from their functions. Then it closes the Topics and
// the Publisher. A second Close does nothing.
func (l *Letters) Close() error {
	l.mu.Lock()
	ended := l.ended
	l.ended = true
	l.mu.Unlock()
	if ended {
		return nil
	}
	l.end()
	l.calls.Wait()
	return errors.Join(l.config.Topics.Close(), l.config.Publisher.Close())
}
