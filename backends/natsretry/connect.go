package natsretry

import (
	"cmp"
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect returns a connection whose handlers read and write NATS JetStream, or an error that reports all faults of the
// configuration. It makes the stream of the retries where it is missing, so the server must answer within 10 seconds. A
// nil logger logs nothing.
//
// The methods of the retry.Connection are safe for concurrent use, and documented there. What they do here:
//
//   - AddConsumerHandler, AddHandler, Subscriber: the topic is a subject. Where no stream has that subject, the
//     subscription makes one, with the name of the topic and no limits. What is in the stream before the first
//     subscription of the group is handled, too.
//   - Publisher makes the stream of a topic that has none, too. Its messages are those of watermill-nats's
//     NATSMarshaler: a metadata key must be a token of HTTP, and a value one line, or a header is lost or changed.
//   - Close gives back the messages in flight, and leaves Config.Conn open.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid natsretry.Config", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	config = config.withDefaults()
	s, err := newServer(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	info, err := s.makeStream(ctx)
	if err != nil {
		return nil, err
	}
	delays := schedules(info)
	if !delays {
		logger.Info("This NATS server or stream has no scheduled messages, which NATS 2.12 and later have: this process "+
			"delays the retries, by the clocks of the app's hosts",
			watermill.LogFields{"server": config.Conn.ConnectedServerVersion(), "stream": s.stream})
	}
	if !config.Conn.Opts.AllowReconnect || config.Conn.Opts.MaxReconnect >= 0 {
		logger.Error("The connection to NATS ends for good in a long outage: connect with nats.MaxReconnects(-1)", nil,
			watermill.LogFields{"max_reconnects": config.Conn.Opts.MaxReconnect})
	}
	waiting, err := s.tiers(ctx)
	if err != nil {
		return nil, err
	}
	links := newLinks(config.Conn)
	copies := newCopyPublisher(s, links, delays)
	connection, err := relay.Connect(relay.Config{
		Publisher: copies, AppPublisher: appPublisher{s}, Policy: config.Policy, Group: config.Group,
		Prefix: config.Prefix, DelayedReturns: delays, RetiredSchedule: waiting,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) {
			made := &subscriber{
				server: s, group: cmp.Or(p.Group, config.Group), concurrency: max(p.Concurrency, 1), links: links,
				logger: logger,
			}
			if p.Tier > 0 {
				made.concurrency = inFlight
			}
			return made, nil
		},
	}, logger)
	if err != nil {
		links.close()
		return nil, err
	}
	made := &process{Connection: connection}
	if delays {
		if made.drains, err = s.drainTiers(copies, links, logger); err != nil {
			return nil, errors.Join(err, made.Close())
		}
		made.overdue = s.watchOverdue(logger)
	}
	return made, nil
}

// process is a connection, with what belongs to no subscriber.
type process struct {
	retry.Connection

	// nil: the tiers are those of the relay
	drains  *drains
	overdue *overdue
}

// Health implements retry.Connection.
func (p *process) Health() retry.Health {
	h := p.Connection.Health()
	if p.overdue != nil {
		p.overdue.write(&h)
	}
	return h
}

// Close implements retry.Connection.
func (p *process) Close() error {
	if p.overdue != nil {
		p.overdue.close()
	}
	if p.drains != nil {
		p.drains.close()
	}
	return p.Connection.Close()
}
