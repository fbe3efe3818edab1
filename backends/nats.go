package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
)

// NATS is NATS JetStream, at a URL such as nats://host:port. The relay delays the messages, because the delays of NATS
// do not fit: NakWithDelay keeps no failure record and has no dead letters, and every waiting message counts towards
// MaxAckPending. Scheduled messages (NATS 2.12 or later) were up to 250 ms late, and need a subject for each message.
func NATS(url string, logger watermill.LoggerAdapter) Backend {
	subscriber := func(group string, limit time.Duration, pending int) (message.Subscriber, error) {
		return newNATSSubscriber(url, group, limit, pending, logger)
	}
	publisher := func() (message.Publisher, error) {
		return wmnats.NewPublisher(wmnats.PublisherConfig{URL: url}, logger)
	}
	retries := parts{
		publisher: publisher,
		subscriber: func(app App, group string) (message.Subscriber, error) {
			return subscriber(group, app.handlerLimit(), natsHandlers)
		},
		tier: func(_ relay.SubscriberParams, limit time.Duration) (message.Subscriber, error) {
			return subscriber("retry-relay", limit, 1)
		},
		topics: func(app App) (relayletters.Reader, error) { return newNATSLetters(url, app) },
	}
	return Backend{
		Name: "nats", Publisher: publisher, Letters: retries.letters,
		Connect: func(app App) (*Connection, error) { return retries.connect(app, logger) },
		Declare: func(prefix string, topics ...string) error {
			return withNATS(url, func(js nats.JetStreamContext) error { return declareNATS(js, prefix, topics) })
		},
		Remove: func(prefix string, topics ...string) error {
			return withNATS(url, func(js nats.JetStreamContext) error {
				err := js.DeleteKeyValue(lockBucket(prefix))
				if errors.Is(err, nats.ErrStreamNotFound) {
					err = nil
				}
				err = errors.Join(err, js.DeleteStream(prefix))
				for _, topic := range topics {
					err = errors.Join(err, js.DeleteStream(streamName(topic)))
				}
				return err
			})
		},
	}
}

// natsHandlers is how many messages of a topic a group may have in flight. A message in the buffer of a subscriber is
// in flight too: a number far above that of the handlers lets messages reach the redelivery limit there.
const natsHandlers = 32

// declareNATS creates a stream for each of the app's topics, and one for all retries. The stream of the retries deletes
// a message when it is acknowledged (WorkQueuePolicy).
func declareNATS(js nats.JetStreamContext, prefix string, topics []string) error {
	_, err := js.AddStream(&nats.StreamConfig{Name: prefix, Subjects: []string{prefix + ".>"},
		Retention: nats.WorkQueuePolicy})
	faults := []error{err}
	for _, topic := range topics {
		_, err := js.AddStream(&nats.StreamConfig{Name: streamName(topic), Subjects: []string{topic}})
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func withNATS(url string, use func(nats.JetStreamContext) error) error {
	connection, err := nats.Connect(url)
	if err != nil {
		return fmt.Errorf("cannot connect to NATS: %w", err)
	}
	defer connection.Close()
	js, err := connection.JetStream()
	if err != nil {
		return err
	}
	return use(js)
}

// streamName replaces the dots, which a subject may have and the name of a stream may not.
func streamName(topic string) string { return strings.ReplaceAll(topic, ".", "_") }

// natsSubscriber creates the durable consumer of each topic before it subscribes. A subscription that creates the
// consumer itself deletes it when it ends, although other subscribers use it.
type natsSubscriber struct {
	message.Subscriber
	manager    nats.JetStreamManager
	connection *nats.Conn
	group      string
	limit      time.Duration
	pending    int
}

func newNATSSubscriber(
	url, group string, limit time.Duration, pending int, logger watermill.LoggerAdapter,
) (message.Subscriber, error) {
	connection, err := nats.Connect(url)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to NATS: %w", err)
	}
	s := &natsSubscriber{connection: connection, group: group, limit: limit, pending: pending}
	if s.manager, err = connection.JetStream(); err != nil {
		connection.Close()
		return nil, err
	}
	s.Subscriber, err = wmnats.NewSubscriberWithNatsConn(connection, wmnats.SubscriberSubscriptionConfig{
		QueueGroupPrefix: group, AckWaitTimeout: limit,
		JetStream: wmnats.JetStreamConfig{
			DurableCalculator: func(_, topic string) string { return durableName(group, topic) },
			// Without it nats.go acknowledges messages that Watermill has not, at a shutdown for instance: they are
			// lost.
			SubscribeOptions: []nats.SubOpt{nats.ManualAck()},
		},
	}, logger)
	if err != nil {
		connection.Close()
		return nil, err
	}
	return s, nil
}

func (s *natsSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	stream, err := s.manager.StreamNameBySubject(topic)
	if err != nil {
		return nil, fmt.Errorf("no NATS stream has the subject %q: create one, as Backend.Declare does: %w", topic, err)
	}
	durable := durableName(s.group, topic)
	_, err = s.manager.AddConsumer(stream, &nats.ConsumerConfig{
		Durable: durable, DeliverGroup: s.group, DeliverSubject: "deliver." + stream + "." +
			durable, FilterSubject: topic,
		AckPolicy: nats.AckExplicitPolicy, AckWait: s.limit, MaxAckPending: s.pending,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create the consumer %s of the NATS stream %s: %w", durable, stream, err)
	}
	return s.Subscriber.Subscribe(ctx, topic)
}

func durableName(group, topic string) string {
	return group + "-" + strings.ReplaceAll(topic, ".", "_")
}
