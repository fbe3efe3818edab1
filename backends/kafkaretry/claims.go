package kafkaretry

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// claims sees the partitions of a handler's subscription come and go. It is a kafka.SaramaTracer, because that is where
// watermill-kafka lets others see them. A rebalance waits until each member has given up its partitions, and
// watermill-kafka gives one up when the message in flight is settled. Its acknowledgement still counts: watermill-kafka
// alone would drop it, and each rebalance would cause a duplicate for each partition.
type claims struct {
	subscriber *subscriber
	topic      string
	sweeper    *sweeper        // the sweeper of a return topic; nil: the topic is the app's
	stop       <-chan struct{} // closed when no further message is delivered
	ctx        context.Context // ends when the group is to be left
	member     *membership
	backlog    backlog

	joined   bool // not the first time
	began    atomic.Bool
	failures int // joins in a row without a session
}

var _ kafka.SaramaTracer = (*claims)(nil)

func (c *claims) WrapConsumer(stock sarama.Consumer) sarama.Consumer { return stock }

func (c *claims) WrapPartitionConsumer(stock sarama.PartitionConsumer) sarama.PartitionConsumer {
	return stock
}

func (c *claims) WrapSyncProducer(_ *sarama.Config, stock sarama.SyncProducer) sarama.SyncProducer {
	return stock
}

// WrapConsumerGroupHandler is called before each join.
func (c *claims) WrapConsumerGroupHandler(stock sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler {
	if c.joined {
		c.pause()
	}
	c.joined = true
	return claimHandler{stock, c}
}

// pause waits before a further join. watermill-kafka itself joins again at once where sarama refuses to join, as
// without the right to read the topic. A return topic may have been deleted.
func (c *claims) pause() {
	if c.began.Swap(false) {
		c.failures = 0
	} else if c.failures++; c.sweeper != nil {
		if err := c.subscriber.prepare(c.ctx, c.topic); err != nil && c.ctx.Err() == nil {
			logger := c.subscriber.cluster.calm(c.subscriber.params, c.member)
			logger.Error("Cannot read a return topic, trying again", err, watermill.LogFields{"topic": c.topic})
		}
	}
	_ = pauses.Sleep(c.ctx, pauses.After(c.failures))
}

// claimHandler is the handler of watermill-kafka.
type claimHandler struct {
	sarama.ConsumerGroupHandler
	claims *claims
}

// Setup implements sarama.ConsumerGroupHandler.
func (h claimHandler) Setup(session sarama.ConsumerGroupSession) error {
	h.claims.began.Store(true)
	h.claims.member.began()
	return h.ConsumerGroupHandler.Setup(session)
}

// Cleanup implements sarama.ConsumerGroupHandler.
func (h claimHandler) Cleanup(session sarama.ConsumerGroupSession) error {
	h.claims.member.ended()
	return h.ConsumerGroupHandler.Cleanup(session)
}

// ConsumeClaim delivers the messages of a partition until it is to be given up.
func (h claimHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	if h.claims.sweeper != nil {
		session = sweptSession{session, h.claims.sweeper}
	}
	one := h.claims.backlog.begin(claim)
	defer h.claims.backlog.end(one)
	messages := make(chan *sarama.ConsumerMessage)
	go func() {
		defer close(messages)
		for {
			var next *sarama.ConsumerMessage
			select {
			case <-h.claims.stop:
				return
			case <-session.Context().Done():
				return
			case next = <-claim.Messages():
			}
			if next == nil { // the channel is closed
				return
			}
			one.read(next)
			select {
			case <-h.claims.stop:
				return
			case <-session.Context().Done():
				return
			case messages <- next:
			}
		}
	}()
	return h.ConsumerGroupHandler.ConsumeClaim(settlingSession{session, one}, endingClaim{claim, messages})
}

// sweptSession is one of a topic whose settled messages are deleted.
type sweptSession struct {
	sarama.ConsumerGroupSession
	sweeper *sweeper
}

func (s sweptSession) MarkMessage(msg *sarama.ConsumerMessage, metadata string) {
	s.ConsumerGroupSession.MarkMessage(msg, metadata)
	s.sweeper.add(msg.Partition, msg.Offset+1)
}

// settlingSession takes the acknowledgement of the message in flight after the session has ended: sarama sends the
// offset with the last ones of the session, before it joins the group again.
type settlingSession struct {
	sarama.ConsumerGroupSession
	partition *partition
}

func (s settlingSession) MarkMessage(msg *sarama.ConsumerMessage, metadata string) {
	s.ConsumerGroupSession.MarkMessage(msg, metadata)
	s.partition.next.Store(msg.Offset + 1)
}

func (settlingSession) Context() context.Context { return context.Background() }

// endingClaim has no further message after the session has ended. sarama's own would still have those that were
// fetched.
type endingClaim struct {
	sarama.ConsumerGroupClaim
	messages <-chan *sarama.ConsumerMessage
}

func (c endingClaim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

// finish delivers the messages of a handler until stop is closed. Those that are in flight then go on: end is called
// when they are settled.
func (c *claims) finish(in <-chan *message.Message, end func()) <-chan *message.Message {
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		var inFlight sync.WaitGroup
		defer func() {
			go func() {
				inFlight.Wait()
				end()
			}()
		}()
		for {
			select {
			case <-c.stop:
				return
			case msg, open := <-in:
				if !open {
					return
				}
				marked := msg.Context().Done() // or of a closed subscriber; the relay sets another one
				select {
				case <-c.stop:
					return // watermill-kafka has not got an answer, so the message stays
				case out <- msg:
				}
				inFlight.Go(func() {
					select {
					case <-marked:
					case <-msg.Nacked():
					}
				})
			}
		}
	}()
	return out
}
