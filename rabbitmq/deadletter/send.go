package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/letters"
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
	return &sender{connection: connection}, err
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
	var failed *failure.Error
	return errors.As(err, &failed) && unpublished.KindOf(failed) != unpublished.Unconfirmed &&
		(failed.Err == publish.ErrNotConnected || failed.Err == publish.ErrBlocked)
}

// isDoubtful reports whether a letter may have been sent.
func isDoubtful(err error) bool { return unpublished.KindOf(err) == unpublished.Unconfirmed }

// isUnconfirmed reports whether a letter may have been sent, and the broker has not confirmed it in time.
func isUnconfirmed(err error) bool { return isDoubtful(err) && errors.Is(err, publish.ErrNotConfirmed) }

// fresh returns what a redrive of a dead letter publishes to its work queue: the message as its handler got it the
// first time, and the history of its redrives, with the trace of its last attempt. The user is that of the
// connection: RabbitMQ closes the channel for another user-id.
//
// The body of a raw dead letter is the payload, and its headers are the metadata: marshal makes the message of it.
func fresh(
	d *amqp091.Delivery, l *letters.Letter, prefix naming.Prefix, entry letters.PastRedrive, user string,
) amqp091.Publishing {
	was := original(d, prefix)
	p := headers.Publishing(&was)
	p.Headers = was.Headers
	p.Headers[recordkey.Redriven] = l.Redriven.Add(entry).String()
	if traceparent := redrive.Traceparent(l.Record); traceparent != "" {
		p.Headers[recordkey.Traceparent] = traceparent
	}
	if exchange := l.Properties["exchange"]; exchange != "" &&
		(l.Kind == letters.Library || l.Kind == letters.Broker) {
		headers.SetOrigin(p.Headers, exchange, l.Properties["routing_key"])
	}
	p.DeliveryMode = amqp091.Persistent
	unfit.Move(&p, unfit.Redriven, user)
	return p
}

// marshal makes of a raw dead letter what the app's marshaler makes of its message, with the properties of the
// letter.
func (s *Store) marshal(l *letters.Letter, p amqp091.Publishing, reason string) (amqp091.Publishing, error) {
	if s.config.Marshal == nil {
		return p, fmt.Errorf("letter %q is raw, because the app's marshaler could not marshal it (%s), so it stays: "+
			"redrive it with a Store that has Config.Marshal", l.ID, reason)
	}
	msg := message.NewMessage(l.ID, l.Payload)
	maps.Copy(msg.Metadata, l.Metadata)
	marshaled, err := s.config.Marshal(msg)
	if err != nil {
		return p, fmt.Errorf("letter %q is raw, and Config.Marshal cannot marshal it, so it stays: %w", l.ID, err)
	}
	p.Body = marshaled.Body
	for key := range l.Metadata {
		delete(p.Headers, key)
	}
	delete(p.Headers, publisher.UUIDHeader)
	maps.Copy(p.Headers, marshaled.Headers)
	p.ContentType = cmp.Or(p.ContentType, marshaled.ContentType)
	p.Type = cmp.Or(p.Type, marshaled.Type)
	unfit.Move(&p, unfit.Redriven, p.UserId)
	return p, nil
}

// same returns an exact copy of a dead letter or orphan, for the same queue, for an import, and for an orphan on its
// way back through the exchange <prefix>.return. The target of an orphan is in its routing key: publish the copy with
// that key, to the exchange <prefix>.orphans if it is to stay an orphan.
//
// It has what package unfit leaves it. x-death stays in a dead letter that the broker dead-lettered, because it is
// the only record: RabbitMQ 3.10 to 4.3 keep the x-death of a client as it is. It does not stay in an orphan:
// RabbitMQ 3.10 drops a message whose x-death has the queue that it is dead-lettered to.
func same(d *amqp091.Delivery) amqp091.Publishing {
	p := headers.Publishing(d)
	p.Headers = make(amqp091.Table, len(d.Headers)+1)
	maps.Copy(p.Headers, d.Headers)
	as := unfit.Exact
	if naming.IsBack(d.Exchange, d.RoutingKey) {
		as = unfit.Returned
	}
	unfit.Move(&p, as, "")
	return p
}

// Import puts the letters that Export wrote back into their queues, each confirmed: every byte, property and header
// is as before. The queues must exist. Of the options it uses To, the queue that gets the letters in place of those
// that they were exported from, DryRun, which only looks for the queues, and Progress, whose total is not known before
// the end. It ends at a line that it cannot read, or whose letter it cannot publish. The error has the number of this
// line, and of those that are imported.
func (s *Store) Import(ctx context.Context, from io.Reader, options letters.Redrive) (letters.Summary, error) {
	ctx, end, err := s.life.Begin(ctx)
	if err != nil {
		return letters.Summary{}, err
	}
	defer end()
	sender, err := s.newSender()
	if err != nil {
		return letters.Summary{}, err
	}
	defer sender.close()
	run := redrive.New(letters.Redrive{DryRun: options.DryRun, Progress: options.Progress}, mostInFlight)
	sender.run = run
	find := func(string) error { return nil } // the broker returns what has no queue
	if options.DryRun {
		connection, err := s.connect(ctx)
		if err != nil {
			return letters.Summary{}, err
		}
		defer connection.Close()
		found := map[string]error{}
		find = func(queue string) error {
			err, known := found[queue]
			if !known {
				if _, err = inspect(connection, queue); err != nil {
					err = explain("find", queue, err)
				}
				found[queue] = err
			}
			return err
		}
	}
	err = run.Lines(ctx, from, func(text []byte) (redrive.Line, error) {
		l, err := parseLine(text)
		if to := options.To; to != "" && to != l.Queue {
			l.Queue, l.Exchange, l.RoutingKey = to, "", to
		}
		if err == nil {
			err = find(l.Queue)
		}
		return redrive.Line{Size: len(l.Publishing.Body), Put: func(ctx context.Context) error {
			err := sender.put(ctx, s.prefix, l)
			if isDoubtful(err) {
				run.Change(func(s *letters.Summary) { s.Doubtful++ })
			}
			return err
		}}, err
	})
	return run.Finish(err, false)
}

// put publishes a letter to its queue.
func (s *sender) put(ctx context.Context, prefix naming.Prefix, l line) error {
	var err error
	for _, to := range l.destinations(prefix) {
		if err = s.send(ctx, to, l.Publishing); !errors.Is(err, publish.ErrUnroutable) {
			return err
		}
	}
	return fmt.Errorf("%w: %q, start its app, or name another queue: %w", letters.ErrNoQueue, l.Queue, err)
}

// destinations returns where a letter can go: to the first one that is there. The queue itself takes no orphan: it
// would lose where it goes back to.
func (l line) destinations(prefix naming.Prefix) []destination {
	to, itself := l.destination(prefix), destination{key: l.Queue}
	if to == itself || l.Queue == prefix.Orphans() {
		return []destination{to}
	}
	return []destination{to, itself}
}

// destination returns where a letter goes: through the exchange that it came from, because the library's reader of
// dead letters restores the properties of those only. The key of an orphan says where it goes back to.
func (l line) destination(prefix naming.Prefix) destination {
	work := naming.WorkQueueOf(l.Queue)
	switch {
	case l.Queue == prefix.Orphans() && l.RoutingKey != l.Queue:
		return destination{prefix.Orphans(), l.RoutingKey}
	case l.Exchange != "" && l.RoutingKey == naming.DeadKey(work) && l.Queue != work:
		return destination{l.Exchange, l.RoutingKey}
	}
	return destination{key: l.Queue}
}
