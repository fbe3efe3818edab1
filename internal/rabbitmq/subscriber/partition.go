package subscriber

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// Order keeps the order of messages with one key through retries and across processes. A topic then has partitions, and
// its queue is the intake: what arrives there is moved to a partition.
type Order struct {
	// ConsumerTimeout is that of the broker. Required.
	ConsumerTimeout time.Duration

	// Partitions knows the queues. Required.
	Partitions Partitions
}

// Partitions are those of a topic.
type Partitions interface {
	// Queues returns the names of the partitions of a work queue, and of the queue on which each process has a
	// consumer.
	Queues(work string) (partitions []string, members string)

	// Route returns where a message of the intake goes, and what is published there. The message is that of the
	// delivery.
	Route(
		topic string, msg *message.Message, delivery amqp091.Delivery,
	) (exchange, key string, publishing amqp091.Publishing, err error)
}

// A partition is the kind of the loop of a queue that keeps an order, or of its intake. Each session ends in the same
// way, whatever the reason: nothing more is handed out, the calls that run end, their acks are sent, and the channel is
// closed. The broker then puts back all that is left, in its order, and only then gives messages to the next consumer.
// A basic.cancel would give the next consumer what is behind the messages that are not acknowledged, and so would a
// nack of some of them.
type partition struct {
	*loop
	number  int          // -1: the intake
	held    atomic.Int64 // messages that wait for their retry, or that are blocked
	behind  atomic.Int64 // messages behind them
	blocked atomic.Pointer[[]blockedArrival]
}

// ordered is the part of a session that only partitions have.
type ordered struct {
	whole       bool // all that is not settled goes back together, when the channel is closed
	partition   *partition
	number      int                     // of the partition
	ending      chan struct{}           // closed by endHolds
	endOnce     sync.Once               // closes ending
	mover       mover                   // of the intake; nil: this is another partition
	moving      sync.Mutex              // guards unrouted, and is held while returns is read
	unrouted    map[string]bool         // routing keys with which no queue got a message that was moved
	returns     chan amqp091.Return     // of the intake: messages that no queue got
	leaveValues context.CancelCauseFunc // ends the session's values
	ages        ages
}

// newPartitions returns the loops of the intake and of the partitions.
func newPartitions(s *subscription) (loops []*loop) {
	add := func(queue string, number int) {
		p := &partition{loop: newLoop(s, queue), number: number}
		p.blocked.Store(new([]blockedArrival))
		p.kind, p.binds, p.fields = p, number < 0, watermill.LogFields{"partition": queue}
		s.partitions = append(s.partitions, p)
		loops = append(loops, p.loop)
	}
	add(s.queue, -1)
	var queues []string
	queues, s.members = s.config.Order.Partitions.Queues(s.queue)
	for i, queue := range queues {
		add(queue, i)
	}
	return loops
}

// endHolds gives back the messages that are held after their calls.
func (n *session) endHolds() { n.endOnce.Do(func() { close(n.ending) }) }

// begin opens a channel with a consumer. The prefetch is the same for the life of the queue: after a larger one, a
// smaller one would give the next consumer messages in another order. The intake has the connection that moves
// messages.
func (p *partition) begin(current *wire.Connection) (*session, error) {
	if p.places.Limit() == 0 {
		return nil, nil
	}
	if p.number < 0 {
		var err error
		if current, err = p.connection.mover(p.stopping); err != nil {
			return nil, err
		}
	}
	channel, err := current.OpenChannel()
	if err != nil {
		return nil, err
	}
	n := newSession(current, channel, p.loop)
	n.order(p)
	if p.number < 0 { // this process is a member
		n.mover, n.returns = channelMover{channel}, channel.NotifyReturn(make(chan amqp091.Return, p.config.Prefetch))
		if err = channel.Confirm(false); err == nil {
			_, err = channel.Consume(p.members, "", false, false, false, false, nil)
		}
		if err != nil {
			_ = channel.Close()
			return nil, err
		}
	}
	err = n.begin(p.config.Consumer.tag(true), p.config.Prefetch, p.config.Consumer, movesConsumers(current.Version()))
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (p *partition) feed(n *session) {
	go func() {
		for delivery := range n.deliveries {
			p.receiver.ask(func() { p.receiver.receive(n, delivery) })
		}
	}()
}

// order makes a session one of a partition.
func (n *session) order(p *partition) {
	n.ordered = ordered{whole: true, partition: p, number: p.number, ending: make(chan struct{}),
		unrouted: map[string]bool{}}
	n.values, n.leaveValues = context.WithCancelCause(p.values)
}

// keep returns why a session ends. Nil: the handler is paused, or the subscription stops. In an alarm, a pause does not
// end the intake: the broker reads what was moved, and the end, when the alarm is over, and would get it twice.
func (p *partition) keep(n *session) error {
	look := time.NewTicker(min(balancePeriod, p.config.Order.ConsumerTimeout/10))
	defer look.Stop()
	looked := time.Now()
	for {
		if p.places.Limit() == 0 && (p.number >= 0 || !n.blocked()) {
			return nil
		}
		select {
		case <-n.closed:
			return n.reason
		case reason := <-n.rewinds:
			return reason
		case <-p.stopping:
			return nil
		case <-p.changes:
		case <-look.C:
			if n.waited() > p.config.Order.ConsumerTimeout/2 {
				return errWaits
			}
			if time.Since(looked) >= balancePeriod {
				looked = time.Now()
				if p.hasTooMany(n) {
					return errBalance
				}
			}
		}
	}
}

// retire ends a session. It waits for the calls that run: at a shutdown for CloseTimeout, else until shortly before the
// consumer timeout, after which the broker may take back a part. Then their contexts end, and a second later the broker
// delivers their messages again. Those wait for their keys until the calls have ended. What is held after its call goes
// back at once, and so does a message of the intake that is not confirmed soon. Only a pause waits for what is held,
// until its end: it may be the reason of the pause, and would come again at once.
func (p *partition) retire(n *session, reason error) {
	n.stopHanding()
	if reason != nil || p.stopped() {
		n.endHolds()
	}
	p.giveBack(n)
	empty := n.users.Close()
	if p.outlasts(n, empty) {
		n.leaveValues(msgctx.ErrOutlived)
		select {
		case <-empty:
		case <-n.settler.over:
		case <-time.After(giveUpAfter):
		}
	}
	n.settler.flush()
	if p.number < 0 && n.blocked() { // it answers when the alarm is over
		go n.close()
		n.settler.end()
	} else {
		n.within(answerTimeout, n.close)
	}
	n.leaveValues(errLeft)
}

// outlasts waits for what a session has handed out, or moves, and reports whether that lasts too long. When a pause is
// over, what is held goes back: all keys of the partition stand until then. Where the handler pauses again and again,
// what is held is handled at most once in balancePeriod.
func (p *partition) outlasts(n *session, empty <-chan struct{}) bool {
	late := time.After(p.patience(n))
	var resumed <-chan time.Time
	for {
		select {
		case <-empty:
			return false
		case <-n.settler.over:
			return false
		case <-p.givenUp:
			return false
		case <-p.receiver.over:
			return false
		case <-late:
			return true
		case <-p.changes:
			if resumed = nil; p.places.Limit() > 0 {
				resumed = time.After(time.Until(time.Unix(0, p.since.Load()).Add(balancePeriod)))
			}
		case <-resumed:
			n.endHolds()
		}
	}
}

// patience is how long the end of a session waits for what is handed out, or moved.
func (p *partition) patience(n *session) time.Duration {
	switch {
	case p.number >= 0:
		return p.config.Order.ConsumerTimeout*9/10 - n.waited()
	case n.blocked():
		return 0
	default:
		return answerTimeout
	}
}

// awaitAcks waits until the queue has all acks of a partition's session. A channel keeps them back while a quorum queue
// has about 32 that it has not applied, and forgets these when it is closed. A basic.consume is applied after what the
// queue has got before, and then the channel sends what it has kept back; so the basic.cancel of that consumer comes
// after everything. The consumer gets nothing: it waits for the end of the first one, the single active consumer. A
// basic.get would be refused for that reason.
func (n *session) awaitAcks() {
	p := n.partition
	moved := movesConsumers(n.connection.Version())
	if moved && n.channel.Qos(0, 0, true) != nil {
		return
	}
	tag := p.config.Consumer.tag(true)
	if _, err := n.basicConsume(tag, p.config.Consumer, moved); err == nil {
		_ = n.channel.Cancel(tag, false)
	}
}

// blocked reports whether the broker reads nothing from the connection, because of an alarm.
func (n *session) blocked() bool { return n.connection.Blocked.Load() }

// errLeft is the cause of the end of a message's context.
var errLeft = errors.New("the channel of the message is closed: another process may handle it now")
