package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var natsBackend = backend{
	name: "nats",
	prepare: func(address, topic string) error {
		connection, err := nats.Connect(address)
		if err != nil {
			return err
		}
		defer connection.Close()
		js, err := jetstream.New(connection)
		if err != nil {
			return err
		}
		_, err = js.CreateStream(context.Background(), jetstream.StreamConfig{Name: topic, Subjects: []string{topic}})
		return err
	},
	open: openNATS,
}

// natsApp keeps what waits in a second stream. Its reader waits for the first message that is not due: the delays must
// be the same for all messages, or each needs a stream.
type natsApp struct {
	topic      string
	connection *nats.Conn
	js         jetstream.JetStream
	waiting    jetstream.Consumer
}

const dueHeader = "Due"

func openNATS(address, topic string) (_ app, err error) {
	a := &natsApp{topic: topic}
	if a.connection, err = nats.Connect(address); err != nil {
		return nil, err
	}
	if a.js, err = jetstream.New(a.connection); err != nil {
		return nil, err
	}
	ctx := context.Background()
	_, err = a.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: a.stream(), Subjects: []string{a.subject()}, Retention: jetstream.WorkQueuePolicy,
	})
	if err != nil {
		return nil, err
	}
	a.waiting, err = a.js.CreateOrUpdateConsumer(ctx, a.stream(), jetstream.ConsumerConfig{
		Durable: "mover", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Minute, MaxAckPending: 1 << 20,
	})
	if err != nil {
		return nil, err
	}
	// A subscription that creates the consumer itself deletes it when it ends, although others use it.
	_, err = a.js.CreateOrUpdateConsumer(ctx, topic, jetstream.ConsumerConfig{
		Durable: group, DeliverGroup: group, DeliverSubject: "deliver." + topic, FilterSubject: topic,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: 30 * time.Second, MaxAckPending: 16 * inFlight,
	})
	return a, err
}

func (a *natsApp) stream() string  { return a.topic + "-waiting" }
func (a *natsApp) subject() string { return a.topic + ".waiting" }

func (a *natsApp) subscribers() ([]message.Subscriber, error) {
	s, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{
		URL: a.connection.ConnectedUrl(), QueueGroupPrefix: group, SubscribersCount: inFlight,
		AckWaitTimeout: 30 * time.Second,
		JetStream: wmnats.JetStreamConfig{
			DurablePrefix: group,
			// Without it nats.go acknowledges messages that Watermill has not.
			SubscribeOptions: []nats.SubOpt{nats.ManualAck()},
		},
	}, logger())
	return []message.Subscriber{s}, err
}

func (a *natsApp) wait(msg *message.Message, due time.Time) error {
	waiting, err := (&wmnats.NATSMarshaler{}).Marshal(a.subject(), msg)
	if err != nil {
		return err
	}
	waiting.Header.Set(dueHeader, strconv.FormatInt(due.UnixNano(), 10))
	_, err = a.js.PublishMsg(msg.Context(), waiting)
	return err
}

// move never waits for a single confirm: a second goroutine acks what the server has stored.
func (a *natsApp) move(ctx context.Context) error {
	all, err := a.waiting.Messages(jetstream.PullMaxMessages(batch))
	if err != nil {
		return err
	}
	defer all.Stop()
	stop := context.AfterFunc(ctx, all.Stop)
	defer stop()
	type moved struct {
		from jetstream.Msg
		to   jetstream.PubAckFuture
	}
	stored := make(chan moved, batch)
	acked := make(chan error, 1)
	go func() {
		var fault error
		for m := range stored {
			select {
			case <-m.to.Ok():
				fault = errors.Join(fault, m.from.Ack())
			case err := <-m.to.Err():
				fault = errors.Join(fault, err)
			}
		}
		acked <- fault
	}()
	forward := func() error {
		for {
			msg, err := all.Next()
			if err != nil {
				return err
			}
			due, err := strconv.ParseInt(msg.Headers().Get(dueHeader), 10, 64)
			if err != nil {
				return fmt.Errorf("a message without its time: %w", err)
			}
			select {
			case <-time.After(time.Until(time.Unix(0, due))):
			case <-ctx.Done():
				return nil
			}
			future, err := a.js.PublishMsgAsync(&nats.Msg{Subject: a.topic, Header: msg.Headers(), Data: msg.Data()})
			if err != nil {
				return err
			}
			stored <- moved{msg, future}
		}
	}
	err = forward()
	close(stored)
	return errors.Join(err, <-acked)
}

func (a *natsApp) Close() error {
	a.connection.Close()
	return nil
}
