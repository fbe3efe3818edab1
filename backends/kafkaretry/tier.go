package kafkaretry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

const (
	// tierWindow is how many messages of a partition of a tier wait in this process. The first one may wait for a
	// topic that takes none: after a SIGKILL, those behind it that were forwarded come twice.
	tierWindow = 256

	// giveUpTimeout is how long a partition that is to be given up is kept for messages that are being published.
	giveUpTimeout = 5 * time.Second

	// nackPause is how long a message that the relay gives back is not delivered again.
	nackPause = 100 * time.Millisecond
)

// tierReader delivers the messages of a tier, many at the same time: watermill-kafka's subscriber delivers the next one
// of a partition after the acknowledgement of the last. It is a sarama.ConsumerGroupHandler.
type tierReader struct {
	sweeper *sweeper
	member  *membership
	out     chan *message.Message
	end     context.CancelFunc
	done    chan struct{} // closed when the group is left
}

// readTier joins the consumer group of a tier until the context ends. The channel is closed then, and when Kafka ends
// the membership.
func (s *subscriber) readTier(ctx context.Context, topic string, of *sweeper) (*tierReader, error) {
	c, member := s.cluster, s.cluster.member(ctx, topic)
	group, err := sarama.NewConsumerGroup(c.config.Brokers, relayGroup+"."+topic,
		c.network.watched(c.config.tier(), &member.traffic))
	if err != nil {
		member.stop()
		return nil, fmt.Errorf("cannot connect to Kafka at %q: %w", c.config.Brokers, err)
	}
	logger := c.calm(s.params, member)
	r := &tierReader{sweeper: of, member: member, out: make(chan *message.Message), done: make(chan struct{})}
	ctx, r.end = context.WithCancel(ctx)
	fields := watermill.LogFields{"topic": topic}
	go func() {
		for err := range group.Errors() {
			logger.Error("Cannot read a tier of Kafka, trying again", err, fields)
		}
	}()
	go func() {
		defer close(r.done)
		defer close(r.out)
		var err error
		for ctx.Err() == nil && err == nil {
			err = group.Consume(ctx, []string{topic}, r)
		}
		if err = errors.Join(err, group.Close()); err != nil && ctx.Err() == nil {
			subscriptions.Read(ctx, err)
			c.logger.Error("The membership in the consumer group of a tier has ended", err, fields)
		}
	}()
	return r, nil
}

// Close leaves the group. What is acknowledged by then is committed.
func (r *tierReader) Close() error {
	r.end()
	<-r.done
	return nil
}

// Setup implements sarama.ConsumerGroupHandler.
func (r *tierReader) Setup(sarama.ConsumerGroupSession) error {
	r.member.began()
	return nil
}

// Cleanup implements sarama.ConsumerGroupHandler.
func (r *tierReader) Cleanup(sarama.ConsumerGroupSession) error {
	r.member.ended()
	return nil
}

// ConsumeClaim delivers the messages of a partition until it is to be given up.
func (r *tierReader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	session = sweptSession{session, r.sweeper}
	window := make(chan *unsettled, tierWindow)
	go r.deliverAll(session.Context(), claim.Messages(), window)
	for one := range window {
		if r.settle(session, one) {
			continue
		}
		rest := []*unsettled{one}
		for one := range window {
			rest = append(rest, one)
		}
		giveUp(session, rest)
	}
	return nil
}

// unsettled is a message of a partition, of which the relay has a delivery.
type unsettled struct {
	raw    *sarama.ConsumerMessage
	msg    *message.Message
	cancel context.CancelFunc // ends the context of the delivery
}

// renew makes a delivery.
func (u *unsettled) renew() {
	u.msg, _ = kafka.DefaultMarshaler{}.Unmarshal(u.raw) // it returns no error
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	u.msg.SetContext(ctx)
}

func (u *unsettled) acked() bool {
	select {
	case <-u.msg.Acked():
		return true
	default:
		return false
	}
}

func (u *unsettled) mark(session sarama.ConsumerGroupSession) {
	session.MarkMessage(u.raw, "")
	u.cancel() // after that the relay may leave
}

func (r *tierReader) deliverAll(
	session context.Context, in <-chan *sarama.ConsumerMessage, window chan<- *unsettled,
) {
	defer close(window)
	for raw := range in {
		one := &unsettled{raw: raw}
		one.renew()
		msg := one.msg
		select {
		case window <- one:
		case <-session.Done():
			one.cancel()
			return
		}
		r.deliver(session, msg)
	}
}

// deliver nacks a message that it cannot deliver.
func (r *tierReader) deliver(session context.Context, msg *message.Message) {
	select {
	case r.out <- msg:
	case <-session.Done():
		msg.Nack()
	}
}

// settle waits until a message is acknowledged. It returns false when the session has ended before.
func (r *tierReader) settle(session sarama.ConsumerGroupSession, one *unsettled) bool {
	ended := session.Context().Done()
	for {
		select {
		case <-one.msg.Acked():
			one.mark(session)
			return true
		case <-one.msg.Nacked():
			one.cancel()
			select {
			case <-time.After(nackPause):
			case <-ended:
				return false
			}
			one.renew()
			r.deliver(session.Context(), one.msg)
		case <-ended:
			return false
		}
	}
}

// giveUp settles the messages of a session that has ended. The relay gives back what it does not publish just then. But
// those before one that it has published are waited for, because that one would come twice otherwise. They are due at
// about the same time.
func giveUp(session sarama.ConsumerGroupSession, all []*unsettled) {
	timeout, stop := context.WithTimeout(context.Background(), giveUpTimeout)
	defer stop()
	end := len(all) // of those that are waited for
	for end > 0 && !all[end-1].acked() {
		end--
		all[end].cancel()
	}
	for i := end; i < len(all); i++ {
		if all[i].await(timeout.Done()) {
			end = i + 1
		}
	}
	for _, one := range all[:end] {
		if !one.await(timeout.Done()) {
			break
		}
		one.mark(session)
	}
	for _, one := range all {
		one.cancel()
	}
}

// await waits until a message is settled, and reports whether it was acknowledged.
func (u *unsettled) await(timeout <-chan struct{}) bool {
	select {
	case <-u.msg.Acked():
		return true
	case <-u.msg.Nacked():
		return false
	case <-timeout:
		return u.acked()
	}
}
