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
//
// A subscription makes the stream of its topic where none has that subject. The stream of the retries deletes a message
// when it is acknowledged (WorkQueuePolicy).
func NATS(url string, logger watermill.LoggerAdapter) Backend {
	return relayed{pubSub: natsServer{url, logger}, logger: logger}
}

type natsServer struct {
	url    string
	logger watermill.LoggerAdapter
}

func (n natsServer) publisher(App) (message.Publisher, error) {
	return wmnats.NewPublisher(wmnats.PublisherConfig{URL: n.url}, n.logger)
}

func (n natsServer) subscriber(app App, p relay.SubscriberParams) (message.Subscriber, error) {
	pending := natsHandlers
	if p.Tier > 0 {
		pending = 1
	}
	return newNATSSubscriber(n, app.Prefix, app.group(p), app.limit(p), pending)
}

func (n natsServer) reader(app App) (relayletters.Reader, error) { return newNATSLetters(n.url, app) }

// natsHandlers is how many messages of a topic a group may have in flight. A message in the buffer of a subscriber is
// in flight too: a number far above that of the handlers lets messages reach the redelivery limit there.
const natsHandlers = 32

// streamName replaces the dots, which a subject may have and the name of a stream may not.
func streamName(topic string) string { return strings.ReplaceAll(topic, ".", "_") }

// natsSubscriber creates the durable consumer of each topic before it subscribes. A subscription that creates the
// consumer itself deletes it when it ends, although other subscribers use it.
type natsSubscriber struct {
	message.Subscriber
	js      nats.JetStreamContext
	prefix  string
	group   string
	limit   time.Duration
	pending int
}

func newNATSSubscriber(
	n natsServer, prefix, group string, limit time.Duration, pending int,
) (message.Subscriber, error) {
	connection, err := nats.Connect(n.url)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to NATS: %w", err)
	}
	s := &natsSubscriber{prefix: prefix, group: group, limit: limit, pending: pending}
	if s.js, err = connection.JetStream(); err != nil {
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
	}, n.logger)
	if err != nil {
		connection.Close()
		return nil, err
	}
	return s, nil
}

func (s *natsSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	stream, err := s.stream(topic)
	if err != nil {
		return nil, fmt.Errorf("cannot create a NATS stream with the subject %q: %w", topic, err)
	}
	durable := durableName(s.group, topic)
	_, err = s.js.AddConsumer(stream, &nats.ConsumerConfig{
		Durable: durable, DeliverGroup: s.group, DeliverSubject: "deliver." + stream + "." + durable,
		FilterSubject: topic, AckPolicy: nats.AckExplicitPolicy, AckWait: s.limit, MaxAckPending: s.pending,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot create the consumer %s of the NATS stream %s: %w", durable, stream, err)
	}
	return s.Subscriber.Subscribe(ctx, topic)
}

// stream returns the stream of a topic, and makes it where it is missing: one for each of the app's topics, and one for
// all retries.
func (s *natsSubscriber) stream(topic string) (string, error) {
	stream, err := s.js.StreamNameBySubject(topic)
	if !errors.Is(err, nats.ErrNoMatchingStream) {
		return stream, err
	}
	config := &nats.StreamConfig{Name: streamName(topic), Subjects: []string{topic}}
	if strings.HasPrefix(topic, s.prefix+".") {
		config = &nats.StreamConfig{
			Name: s.prefix, Subjects: []string{s.prefix + ".>"}, Retention: nats.WorkQueuePolicy,
		}
	}
	_, err = s.js.AddStream(config)
	return config.Name, err
}

func durableName(group, topic string) string {
	return group + "-" + streamName(topic)
}
