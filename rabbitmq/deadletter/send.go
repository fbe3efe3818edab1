package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/headers"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

// A destination is where a letter is sent to: a queue through the default exchange, or an exchange with a routing key.
type destination struct{ exchange, key string }

func (d destination) topic() string { return d.exchange + "\x00" + d.key }

// confirmTimeout is how long the broker may take to confirm a letter. It is longer than a lost connection stays unnoticed, which is three
// heartbeats of 10 seconds by default.
const confirmTimeout = time.Minute

// A sender publishes letters, each confirmed and mandatory. It is safe for concurrent use.
type sender struct {
	publisher *publisher.Publisher
	// waiting, if not nil, is called before a letter waits for the broker to come back, and after it with nil.
	waiting func(error)
}

func (s *Store) newSender() (*sender, error) {
	p, err := publisher.New(
		publisher.ConnectionConfig{URI: s.config.URI, AMQP: s.config.AMQP, TLS: s.config.TLS, ConfirmTimeout: confirmTimeout},
		publisher.Config{
			Route: func(topic string) (exchange, key string, err error) {
				exchange, key, _ = strings.Cut(topic, "\x00")
				return exchange, key, nil
			},
			Marshal: func(msg *message.Message) (amqp091.Publishing, error) {
				return *msg.Context().Value(publishingKey{}).(*amqp091.Publishing), nil
			},
			Shrink: headers.Shrink,
		}, s.logger)
	if err != nil {
		return nil, err
	}
	return &sender{publisher: p}, nil
}

// publishingKey is the key of a letter in the context of its message.
type publishingKey struct{}

// send returns nil when the broker has routed and confirmed the letter. While the broker is away or blocks publishers, it waits until ctx
// ends. Only then, and never while a letter is in flight, it returns the context's error.
func (s *sender) send(ctx context.Context, to destination, p amqp091.Publishing) error {
	pause := dial.Backoff{Initial: 20 * time.Millisecond, Max: time.Second}
	waited := false
	for {
		err := s.publisher.Publish(to.topic(), messageOf(ctx, &p))
		if err == nil || !isAway(err) {
			if waited && s.waiting != nil {
				s.waiting(nil)
			}
			return err
		}
		if s.waiting != nil {
			waited = true
			s.waiting(err)
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
	msg.SetContext(context.WithValue(context.WithoutCancel(ctx), publishingKey{}, p))
	return msg
}

func (s *sender) close() { _ = s.publisher.Close() }

// isAway reports whether a letter was not sent because there is no connection or the broker blocks publishers.
func isAway(err error) bool {
	var failed *publisher.PublishError
	return errors.As(err, &failed) && !failed.Unconfirmed() && (failed.Err == publisher.ErrNotConnected || failed.Err == publisher.ErrBlocked)
}

// isDoubtful reports whether a letter may have been sent.
func isDoubtful(err error) bool {
	var failed *publisher.PublishError
	return errors.As(err, &failed) && failed.Unconfirmed()
}

// isUnconfirmed reports whether the broker has read a letter and has not confirmed it in time.
func isUnconfirmed(err error) bool { return errors.Is(err, publisher.ErrNotConfirmed) }
