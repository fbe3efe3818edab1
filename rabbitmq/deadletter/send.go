package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/redrive"
)

// A destination is where a letter is sent to: a queue through the default exchange, or an exchange with a routing
// key.
type destination struct{ exchange, key string }

func (d destination) topic() string { return d.exchange + "\x00" + d.key }

// confirmTimeout is how long the broker may take to confirm a letter. It is longer than a lost connection stays
// unnoticed, which is three heartbeats of 10 seconds by default.
const confirmTimeout = time.Minute

// A sender publishes letters, each confirmed and mandatory. It is safe for concurrent use.
type sender struct {
	publisher *publisher.Publisher
	run       *redrive.Run // learns that the broker is away; may be nil

	copies bool // it replaces letters of a look
	taken  int  // the largest body that the broker has taken from putAll
}

func (s *Store) newSender() (*sender, error) {
	p, err := publisher.New(
		publisher.ConnectionConfig{URI: s.config.URI, AMQP: s.config.AMQP, TLS: s.config.TLS,
			ConfirmTimeout: confirmTimeout},
		publisher.Config{
			Route: func(topic string) (exchange, key string, err error) {
				exchange, key, _ = strings.Cut(topic, "\x00")
				return exchange, key, nil
			},
			Marshal: func(msg *message.Message) (amqp091.Publishing, error) {
				o := msg.Context().Value(outgoingKey{}).(*outgoing)
				o.prepared = true
				return *o.publishing, nil
			},
			Shrink: headers.Shrink,
		}, s.logger)
	if err != nil {
		return nil, err
	}
	return &sender{publisher: p}, nil
}

// outgoing is a letter in the context of its message, under outgoingKey.
type outgoing struct {
	publishing *amqp091.Publishing
	prepared   bool // Publish has got as far as this message
}

type outgoingKey struct{}

// send returns nil when the broker has routed and confirmed the letter. While the broker is away or blocks
// publishers, it waits until ctx ends. Only then, and never while a letter is in flight, it returns the context's
// error. Copies do not wait for the end of an alarm.
func (s *sender) send(ctx context.Context, to destination, p amqp091.Publishing) error {
	pause := wire.Backoff{Initial: 20 * time.Millisecond, Max: time.Second}
	waited := false
	for {
		err := s.publisher.Publish(to.topic(), messageOf(ctx, &p))
		if err == nil || !isAway(err) || s.copies && errors.Is(err, publisher.ErrBlocked) {
			if waited {
				s.run.Wait(nil)
			}
			return err
		}
		if s.run != nil {
			waited = true
			s.run.Wait(err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(pause.Next()):
		}
	}
}

func messageOf(ctx context.Context, p *amqp091.Publishing) *message.Message {
	msg := message.NewMessage(p.MessageId, nil)
	msg.SetContext(context.WithValue(context.WithoutCancel(ctx), outgoingKey{}, &outgoing{publishing: p}))
	return msg
}

// sendAll publishes letters in one call, and returns the error of each.
func (s *sender) sendAll(ctx context.Context, to destination, lines []line) []error {
	messages := make([]*message.Message, len(lines))
	for i := range lines {
		messages[i] = messageOf(ctx, &lines[i].Publishing)
		messages[i].UUID = strconv.Itoa(i) // a message-id can be missing, or be that of two letters
	}
	err := s.publisher.Publish(to.topic(), messages...)
	last := messages[len(messages)-1].Context().Value(outgoingKey{}).(*outgoing)
	return errorsOf(err, last.prepared, len(messages))
}

// errorsOf returns the error of each message of a call of Publish. The UUIDs of the messages are their places.
// prepared: the call got as far as the last one.
func errorsOf(err error, prepared bool, n int) []error {
	var failures []error
	switch e := err.(type) {
	case nil:
		return make([]error, n)
	case *publisher.PublishError:
		var broker *amqp091.Error
		if prepared && (e.Err != publisher.ErrRefused || errors.As(e.Cause, &broker)) {
			failures = []error{e}
		}
	case interface{ Unwrap() []error }:
		failures = e.Unwrap()
	}
	if len(failures) == 0 { // nothing was sent
		return slices.Repeat([]error{err}, n)
	}
	failed := make([]error, n)
	for _, failure := range failures {
		var e *publisher.PublishError
		errors.As(failure, &e)
		i, _ := strconv.Atoi(e.MessageUUID)
		failed[i] = failure
	}
	return failed
}

func (s *sender) close() { _ = s.publisher.Close() }

// isAway reports whether a letter was not sent because there is no connection or the broker blocks publishers.
func isAway(err error) bool {
	var failed *publisher.PublishError
	return errors.As(err, &failed) && !failed.Unconfirmed() &&
		(failed.Err == publisher.ErrNotConnected || failed.Err == publisher.ErrBlocked)
}

// isDoubtful reports whether a letter may have been sent.
func isDoubtful(err error) bool {
	var failed *publisher.PublishError
	return errors.As(err, &failed) && failed.Unconfirmed()
}

// isUnconfirmed reports whether the broker has read a letter and has not confirmed it in time.
func isUnconfirmed(err error) bool { return errors.Is(err, publisher.ErrNotConfirmed) }
