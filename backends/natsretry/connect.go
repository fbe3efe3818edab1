package natsretry

import (
	"cmp"
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect returns a connection whose handlers read and write NATS JetStream, or an error that reports all faults of the
// configuration. It makes the stream of the retries where it is missing, so the server must answer within 10 seconds.
// It returns an error below NATS 2.12, which has no scheduled messages. A nil logger logs nothing.
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
	if err := s.makeStream(ctx); err != nil {
		return nil, err
	}
	if !config.Conn.Opts.AllowReconnect || config.Conn.Opts.MaxReconnect >= 0 {
		logger.Error("The connection to NATS ends for good in a long outage: connect with nats.MaxReconnects(-1)", nil,
			watermill.LogFields{"max_reconnects": config.Conn.Opts.MaxReconnect})
	}
	links := newLinks(config.Conn)
	connection, err := relay.Connect(relay.Config{
		Publisher:    copyPublisher{server: s, links: links, slots: newSlots(config.Prefix)},
		AppPublisher: appPublisher{s}, Policy: config.Policy, Group: config.Group, Prefix: config.Prefix,
		DelayedReturns: true,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) {
			return &subscriber{
				server: s, group: cmp.Or(p.Group, config.Group), concurrency: max(p.Concurrency, 1), links: links,
				logger: logger,
			}, nil
		},
	}, logger)
	if err != nil {
		links.close()
		return nil, err
	}
	return &process{Connection: connection, overdue: s.watchOverdue(logger)}, nil
}

// process is a connection, with what belongs to no subscriber.
type process struct {
	retry.Connection
	overdue *overdue
}

// Health implements retry.Connection.
func (p *process) Health() retry.Health {
	h := p.Connection.Health()
	p.overdue.write(&h)
	return h
}

// Close implements retry.Connection.
func (p *process) Close() error {
	p.overdue.tasks.Close()
	return p.Connection.Close()
}
