package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// A destination is where a letter is sent to: a queue through the default exchange, or an exchange with a routing
// key.
type destination struct{ exchange, key string }

// confirmTimeout is how long the broker may take to confirm a letter. It is longer than a lost connection stays
// unnoticed, which is three heartbeats of 10 seconds by default.
const confirmTimeout = time.Minute

// A sender publishes letters, each confirmed and mandatory. It is safe for concurrent use.
type sender struct {
	connection *publisher.Connection
	run        *redrive.Run // learns that the broker is away; may be nil

	copies bool // it replaces letters of a look
	taken  int  // the largest body that the broker has taken from putAll
}

func (s *Store) newSender() (*sender, error) {
	connection, err := publisher.Open(publisher.Config{Wire: s.dial, ConfirmTimeout: confirmTimeout}, s.logger)
	if err != nil {
		return nil, err
	}
	return &sender{connection: connection}, nil
}

// send returns nil when the broker has routed and confirmed the letter. While the broker is away or blocks
// publishers, it waits until ctx ends. Only then, and never while a letter is in flight, it returns the context's
// error. Copies do not wait for the end of an alarm.
func (s *sender) send(ctx context.Context, to destination, p amqp091.Publishing) error {
	pause := wire.Backoff{Initial: 20 * time.Millisecond, Max: time.Second}
	waited := false
	for {
		m, err := s.message(ctx, to, p)
		if err == nil {
			err = s.connection.SendOne(m)
		}
		if err == nil || !isAway(err) || s.copies && errors.Is(err, publish.ErrBlocked) {
			if waited {
				s.run.Wait(nil)
			}
			return err
		}
		if s.run != nil {
			waited = true
			s.run.Wait(err)
		}
		if ended := pauses.Sleep(ctx, pause.Next()); ended != nil {
			return fmt.Errorf("%w: %w", ended, err)
		}
	}
}

// message makes the letter small enough to be sent, where its failure record is all that is too large.
func (s *sender) message(ctx context.Context, to destination, p amqp091.Publishing) (publisher.Message, error) {
	p.Headers = maps.Clone(p.Headers) // an attempt that was not confirmed may still be written
	m := publisher.Message{
		Context: context.WithoutCancel(ctx), Exchange: to.exchange, RoutingKey: to.key, UUID: p.MessageId,
		Publishing: p,
	}
	err := headers.Fit(&m, s.connection)
	return m, err
}

func (s *sender) close() { _ = s.connection.Close() }

// isAway reports whether a letter was not sent because there is no connection or the broker blocks publishers.
func isAway(err error) bool {
	var failed *publish.Error
	return errors.As(err, &failed) && unpublished.KindOf(failed) != unpublished.Unconfirmed &&
		(failed.Err == publish.ErrNotConnected || failed.Err == publish.ErrBlocked)
}

// isDoubtful reports whether a letter may have been sent.
func isDoubtful(err error) bool {
	return unpublished.KindOf(err) == unpublished.Unconfirmed
}

// isUnconfirmed reports whether the broker has read a letter and has not confirmed it in time.
func isUnconfirmed(err error) bool { return errors.Is(err, publish.ErrNotConfirmed) }
