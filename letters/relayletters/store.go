// Package relayletters reads, redrives and discards the dead letters of package relay, as a letters.Store.
package relayletters

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/users"
	"github.com/tieredretry/watermill-retry/letters"
)

// Config configures Open. The Publisher and the Reader then belong to the Store, which closes them.
type Config struct {
	// Publisher publishes to return topics. Required. As relay.Config.Publisher, it must return nil only when the
	// backend has stored the message, and should obey the deadline of the message's context.
	Publisher message.Publisher

	// Reader reads the dead-letter topics. Required.
	Reader Reader

	// Prefix is that of relay.Config.
	Prefix string
}

// Validate reports all faults of the configuration in one error.
func (c Config) Validate() error {
	return errors.Join(
		faults.If(c.Publisher == nil, "Publisher is nil: set the publisher of the return topics"),
		faults.If(c.Reader == nil, "Reader is nil: set what reads the backend's topics; the modules of folder backends "+
			"have it for several"),
	)
}

// Reader reads the topics of a backend without a consumer group, and removes single messages from them. A Subscriber
// can do neither: it gets a message only once, and a message that it does not acknowledge stops those behind it. Its
// methods are safe for concurrent use.
type Reader interface {
	// End returns the end of a topic. A topic that does not exist is letters.ErrNoQueue.
	End(ctx context.Context, topic string) (End, error)

	// Read returns the first messages between two positions, the oldest first and at most limit, and removes none.
	// The message at after is not among them, the one at until is. An empty after is the start of the topic, an empty
	// until its present end.
	Read(ctx context.Context, topic, after, until string, limit int) ([]Stored, error)

	// Remove removes the message at a position. One that is gone is no error.
	Remove(ctx context.Context, topic, position string) error

	// HasHandler reports whether a handler has subscribed to a topic: what is published to it then waits for that
	// handler.
	HasHandler(ctx context.Context, topic string) (bool, error)

	// Lock lets one call at a time change a topic. Where another has the lock, the error is letters.ErrBusy. The
	// context that Lock returns ends when the lock is lost. The function gives the lock back. A backend that has no
	// locks returns ctx.
	Lock(ctx context.Context, topic string) (context.Context, func(), error)

	// Close closes the connections.
	Close() error
}

// End is the end of a topic.
type End struct {
	Position string // the position of the last message, or one after it. What is published later has a higher position
	Count    int    // number of messages
}

// Stored is a message in a topic.
type Stored struct {
	Position string
	Message  *message.Message
}

// Store is the dead letters of a relay. A letter is there until it is redriven or discarded, whatever consumer groups
// have read it; on a backend that deletes what is acknowledged, a reader that acknowledges a letter removes it. It is
// safe for concurrent use.
//
// Browse keeps the letters away from nothing. It returns those that were there when the loop began.
//
// Redrive publishes each letter to the return topic of the handler that failed, waits until the publisher has
// returned nil, and then removes the letter. Other handlers and consumer groups of the original topic do not receive
// it. One letter is in flight: a process that dies can cause one duplicate, and loses nothing. The letters that are
// not selected stay as they are, in their order. A letter whose return topic has no handler stays, and the error is
// letters.ErrNoTarget. If the publisher or the backend returns an error, Redrive ends with that error.
type Store struct {
	part

	config Config
	looker operate.Looker // the Reader, or blind
	life   *users.Lifetime
	close  sync.Once
}

var _ letters.Store = (*Store)(nil)

// Open returns the Store, or an error that reports all faults of the configuration. It does not connect.
func Open(config Config) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid relayletters.Config", err)
	}
	s := &Store{config: config, looker: blind{}, life: users.NewLifetime(letters.ErrClosed)}
	if looker, can := config.Reader.(operate.Looker); can {
		s.looker = looker
	}
	s.part = operate.PartOf(operator{s.looker, s})
	return s, nil
}

// TopicOf returns the dead-letter topic of a consumer group and its topic, "<Prefix>.dead.<group>.<topic>". Where that
// is too long, or has characters that not every backend takes, it ends with a hash. The letters of messages that named
// no handler are in "<Prefix>.dead.unknown".
func (s *Store) TopicOf(group, topic string) string {
	return s.topics().Dead(relaytopic.Key(group, topic))
}

func (s *Store) topics() relaytopic.Names { return relaytopic.Names{Prefix: s.config.Prefix} }

// batch is how many letters are read at once.
const batch = 100

// Browse implements letters.Store. The letters stay where they are, for other readers too.
func (s *Store) Browse(ctx context.Context, topic string, filter letters.Filter) iter.Seq2[*letters.Letter, error] {
	return func(yield func(*letters.Letter, error) bool) {
		for found, err := range s.browse(ctx, topic, filter) {
			if !yield(found.letter, err) {
				return
			}
		}
	}
}

// browse goes through the letters that the filter selects.
func (s *Store) browse(ctx context.Context, topic string, filter letters.Filter) iter.Seq2[item, error] {
	return func(yield func(item, error) bool) {
		ctx, release := s.life.Use(ctx)
		defer release()
		var end End
		err := errors.Join(filter.Validate(), s.life.Closed())
		if err == nil {
			end, err = s.config.Reader.End(ctx, topic)
		}
		if err != nil {
			yield(item{}, cause(ctx, err))
			return
		}
		for stored, err := range s.read(ctx, topic, "", end.Position) {
			found := item{Stored: stored}
			if err == nil {
				found.letter = s.letter(topic, stored.Message)
			}
			if (err != nil || filter.Match(found.letter, time.Now())) && !yield(found, err) {
				return
			}
		}
	}
}

// read goes through the messages between two positions.
func (s *Store) read(ctx context.Context, topic, after, until string) iter.Seq2[Stored, error] {
	return func(yield func(Stored, error) bool) {
		for {
			found, err := s.config.Reader.Read(ctx, topic, after, until, batch)
			for _, stored := range found {
				if ended := ctx.Err(); ended != nil {
					err = ended
					break
				}
				if after = stored.Position; !yield(stored, nil) {
					return
				}
			}
			if err != nil {
				yield(Stored{}, cause(ctx, err))
			}
			if err != nil || len(found) == 0 {
				return
			}
		}
	}
}

// cause returns why a call ended, in place of the error that its end caused.
func cause(ctx context.Context, err error) error {
	ended, cause := ctx.Err(), context.Cause(ctx)
	switch {
	case ended == nil || err == nil:
		return err
	case errors.Is(cause, ended) || errors.Is(cause, letters.ErrClosed):
		return cause
	}
	return fmt.Errorf("%w: %w", ended, cause)
}

// Close ends all calls. It waits for those of Redrive and Discard, so do not call it from their functions. Then it
// closes the Reader and the Publisher. A second Close does nothing.
func (s *Store) Close() (err error) {
	s.close.Do(func() {
		s.life.Close()
		err = errors.Join(s.config.Reader.Close(), s.config.Publisher.Close())
	})
	return err
}
