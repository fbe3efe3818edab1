package subscriber

import (
	"context"
	"errors"
	"fmt"
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
	// Queues returns the names of the partitions of a work queue, and of the queue on which each process has a consumer.
	Queues(work string) (partitions []string, members string)

	// Route returns where a message of the intake goes, and what is published there. The message is that of the delivery.
	Route(
		topic string, msg *message.Message, delivery amqp091.Delivery,
	) (exchange, key string, publishing amqp091.Publishing, err error)
}

// A partition is a queue of a subscription that keeps an order, or its intake. It has a session at a time, and each
// session ends in the same way, whatever the reason: nothing more is handed out, the calls that run end, their acks are
// sent, and the channel is closed. The broker then puts back all that is left, in its order, and only then gives
// messages to the next consumer. A basic.cancel would give the next consumer what is behind the messages that are not
// acknowledged, and so would a nack of some of them.
type partition struct {
	*subscription
	queue   string
	number  int // -1: the intake
	session atomic.Pointer[session]
	since   atomic.Int64  // since when it has a session, or none
	changes chan struct{} // receives when run is to look at the limit

	held    atomic.Int64 // messages that wait for their retry, or that are blocked
	behind  atomic.Int64 // messages behind them
	blocked atomic.Pointer[[]blockedArrival]
}

// ordered is the part of a session that only partitions have.
type ordered struct {
	partition   *partition
	leaving     chan struct{} // closed by leave: nothing of the session is handed out any more
	leaveOnce   sync.Once     // closes leaving
	ending      chan struct{} // closed by endHolds
	endOnce     sync.Once     // closes ending
	rewinds     chan error    // has room for one: why the session is to end
	values      context.Context
	mover       mover                   // of the intake
	moving      sync.Mutex              // guards unrouted, and is held while returns is read
	unrouted    map[string]bool         // routing keys with which no queue got a message that was moved
	returns     chan amqp091.Return     // of the intake: messages that no queue got
	leaveValues context.CancelCauseFunc // ends values
	ages        ages
}

// Why a session ends.
var (
	errNacked   = errors.New("a message was nacked")
	errDeposed  = errors.New("the broker has delivered a message again that is still here: it took this consumer for lost")
	errWaits    = errors.New("a message waits for half of the consumer timeout")
	errBalance  = errors.New("another process has fewer partitions")
	errReturned = errors.New("no queue has got a message that was moved to its partition")
	errRefused  = errors.New("the broker has refused a message that was moved to its partition, by a nack")
)

// isPlanned reports whether a session can follow at once.
func isPlanned(reason error) bool {
	return reason == nil || errors.Is(reason, errWaits) || errors.Is(reason, errBalance) || errors.Is(reason, errNacked)
}

func (s *subscription) newPartitions() {
	add := func(queue string, number int) {
		p := &partition{subscription: s, queue: queue, number: number, changes: make(chan struct{}, 1)}
		p.blocked.Store(new([]blockedArrival))
		s.partitions = append(s.partitions, p)
	}
	s.failures.pause = s.connection.config.Pause()
	add(s.queue, -1)
	var queues []string
	queues, s.members = s.config.Order.Partitions.Queues(s.queue)
	for i, queue := range queues {
		add(queue, i)
	}
}

// leave ends a session of a partition. No message of it is handed out afterwards.
func (n *session) leave(reason error) {
	n.stopHanding()
	select {
	case n.rewinds <- reason:
	default:
	}
}

// endHolds gives back the messages that are held after their calls.
func (n *session) endHolds() { n.endOnce.Do(func() { close(n.ending) }) }

func (n *session) stopHanding() { n.leaveOnce.Do(func() { close(n.leaving) }) }

// gone reports whether messages of a session are not to be handed out.
func (n *session) gone() bool { return n.lost() || n.leaves() }

// leaves reports whether the messages of a partition's session are about to go back.
func (n *session) leaves() bool {
	select {
	case <-n.leaving: // nil where there is no partition
		return true
	default:
		return false
	}
}

// startOrdered opens the first session of each partition. After an error, the subscription is over.
func (s *subscription) startOrdered() error {
	detach := s.config.Gate.Attach(s)
	go s.receiver.run()
	var ends sync.WaitGroup
	for _, p := range s.partitions {
		first, err := p.first()
		if err != nil {
			s.stop()
			s.shutDownOrdered(&ends)
			s.finish(detach)
			return err
		}
		ends.Go(func() { p.run(first) })
	}
	s.setState(nil)
	s.logger.Info("Consuming in the order of each key", watermill.LogFields{"partitions": len(s.partitions) - 1,
		"prefetch": s.config.Prefetch})
	go func() {
		defer s.finish(detach)
		<-s.stopping
		s.shutDownOrdered(&ends)
		s.logger.Info("Stopped consuming", nil)
	}()
	return nil
}

func (s *subscription) shutDownOrdered(ends *sync.WaitGroup) {
	contexts := time.AfterFunc(s.config.CloseTimeout, func() { close(s.expired) })
	defer contexts.Stop()
	waiting := time.AfterFunc(s.config.CloseTimeout+giveUpAfter, func() { close(s.givenUp) })
	defer waiting.Stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-s.receiver.stopped
		ends.Wait()
		s.workers.Wait()
		s.receiver.quit()
	}()
	select {
	case <-ended:
	case <-time.After(s.config.CloseTimeout + giveUpAfter + 2*answerTimeout):
		s.logger.Error("Stopped although a function of the app has not returned", errNotSettled, nil)
	}
}

// first opens the first session. It returns nil while the handler is paused.
func (p *partition) first() (first *session, err error) {
	err = wire.AtStart(p.ctx, p.connection.config.Pause(), p.logger, func(ctx context.Context) error {
		current, err := p.connection.link.Now()
		if err == nil {
			first, err = p.open(ctx, current, time.Time{})
		} else if p.failed.Load() != nil { // the broker has closed the connection because of another partition
			err = fmt.Errorf("%w: %w", err, amqp091.ErrClosed)
		}
		return err
	}, p.fail)
	return first, err
}

func (p *partition) sleepFor(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.stopping:
	}
}

// run keeps a session open until the subscription stops, or none while the handler is paused.
func (p *partition) run(n *session) {
	pause := p.connection.config.Pause()
	pause.Max = min(pause.Max, longestAgain)
	for !p.stopped() {
		if n == nil {
			if n = p.reopen(); n == nil {
				continue
			}
		}
		began := time.Now()
		reason := p.keep(n)
		p.retire(n, reason)
		switch {
		case reason == nil: // a pause, or the end
		case isPlanned(reason):
			p.logger.Info("A partition goes back to its queue, in its order", watermill.LogFields{"partition": p.queue,
				"reason": reason.Error()})
		default:
			p.fail(reason)
			p.logger.Error("The consumer of a partition has ended, consuming again", reason,
				watermill.LogFields{"partition": p.queue})
			if time.Since(began) > pause.Max {
				pause.Reset()
			}
			if errors.Is(reason, errCancelled) {
				pause.AtLeast(wire.AfterDeletion)
			}
		}
		if n = nil; !isPlanned(reason) {
			p.sleepFor(pause.Next())
		}
		p.counts.reconnects.Add(1)
	}
}

// reopen opens a session, unless the handler is paused. It returns nil after a try that has failed, and after a change
// of the limit.
func (p *partition) reopen() *session {
	if p.sleepFor(p.failures.wait()); p.stopped() {
		return nil
	}
	if !p.mayCall() {
		select {
		case <-p.changes:
		case <-p.stopping:
		}
		return nil
	}
	current := p.connection.link.Await(p.stopping)
	if current == nil {
		return nil
	}
	opened, err := p.open(p.ctx, current, time.Now())
	if err != nil && !p.stopped() {
		p.fail(err)
		p.logger.Error("Cannot consume a partition again", err, watermill.LogFields{"partition": p.queue})
		p.failures.add()
	}
	return opened
}

// failures makes the partitions of a subscription wait together after one could not be opened: the broker may have
// ended the connection of all for it, as with an internal error.
type failures struct {
	mu    sync.Mutex
	pause wire.Backoff
	over  time.Time
}

func (f *failures) wait() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Until(f.over)
}

func (f *failures) add() {
	f.mu.Lock()
	defer f.mu.Unlock()
	since := time.Since(f.over)
	if since < 0 { // others have failed, too
		return
	}
	if since > f.pause.Max {
		f.pause.Reset()
	}
	f.over = time.Now().Add(f.pause.Next())
}

// open declares the topic and opens a session, or none while the handler is paused. It waits neither for the broker nor
// for Handler.Declare when ctx ends.
func (p *partition) open(ctx context.Context, current *wire.Connection, lostAt time.Time) (*session, error) {
	type result struct {
		session *session
		err     error
	}
	opened := make(chan result, 1)
	go func() {
		if err := p.subscriber.declare(current, p.topic, lostAt); err != nil || !p.mayCall() {
			opened <- result{nil, err}
			return
		}
		declaring := current
		if p.number < 0 {
			var err error
			if current, err = p.connection.mover(p.stopping); err != nil {
				opened <- result{nil, err}
				return
			}
		}
		n, err := p.consume(current)
		if err == nil && p.number < 0 {
			if err := p.subscriber.bind(declaring, p.topic, time.Time{}); err != nil {
				p.retire(n, nil)
				opened <- result{nil, err}
				return
			}
		}
		if err != nil {
			err = fmt.Errorf("topic %q: consume queue %q: %w", p.topic, p.queue, err)
		}
		opened <- result{n, err}
	}()
	select {
	case r := <-opened:
		return r.session, r.err
	case <-ctx.Done():
	}
	go func() {
		if r := <-opened; r.session != nil {
			p.retire(r.session, nil)
		}
	}()
	return nil, context.Cause(ctx)
}

// consume opens a channel with a consumer. The prefetch is the same for the life of the queue: after a larger one, a
// smaller one would give the next consumer messages in another order.
func (p *partition) consume(current *wire.Connection) (*session, error) {
	channel, err := current.OpenChannel()
	if err != nil {
		return nil, err
	}
	n := newSession(current, channel, p.subscription)
	n.order(p)
	n.mover = channelMover{channel}
	tag := p.config.Consumer.tag(true)
	var deliveries <-chan amqp091.Delivery
	if p.number < 0 { // this process is a member
		n.returns = channel.NotifyReturn(make(chan amqp091.Return, p.config.Prefetch))
		if err = channel.Confirm(false); err == nil {
			_, err = channel.Consume(p.members, "", false, false, false, false, nil)
		}
	}
	if err == nil {
		deliveries, err = n.basicConsume(p.queue, tag, p.config.Prefetch, p.config.Consumer,
			movesConsumers(current.Version()))
	}
	if err != nil {
		_ = channel.Close()
		return nil, err
	}
	n.consumer.Store(&consumer{session: n, tag: tag, deliveries: deliveries})
	p.session.Store(n)
	p.since.Store(time.Now().UnixNano())
	go n.watchClosed()
	go n.settler.run()
	go func() {
		for delivery := range deliveries {
			p.receiver.ask(func() { p.receiver.receive(n, delivery) })
		}
	}()
	return n, nil
}

// order makes a session one of a partition.
func (n *session) order(p *partition) {
	n.ordered = ordered{partition: p, leaving: make(chan struct{}), ending: make(chan struct{}),
		rewinds: make(chan error, 1), unrouted: map[string]bool{}}
	n.values, n.leaveValues = context.WithCancelCause(p.values)
}

// keep returns why a session ends. Nil: the handler is paused, or the subscription stops. In an alarm, a pause does not
// end the intake: the broker reads what was moved, and the end, when the alarm is over, and would get it twice.
func (p *partition) keep(n *session) error {
	look := time.NewTicker(min(balancePeriod, p.config.Order.ConsumerTimeout/10))
	defer look.Stop()
	looked := time.Now()
	for {
		if !p.mayCall() && (p.number >= 0 || !n.blocked()) {
			return nil
		}
		select {
		case <-n.closed:
			return n.reason
		case tag, open := <-n.cancels:
			if !open {
				<-n.closed
				return n.reason
			}
			return fmt.Errorf("%w %q", errCancelled, tag)
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
	if p.session.CompareAndSwap(n, nil) {
		p.since.Store(time.Now().UnixNano())
	}
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
			if resumed = nil; p.mayCall() {
				resumed = time.After(time.Until(time.Unix(0, p.since.Load()).Add(balancePeriod)))
			}
		case <-resumed:
			n.endHolds()
		}
	}
}

func (p *partition) mayCall() bool { return p.limited() > 0 }

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
	if _, err := n.basicConsume(p.queue, tag, p.config.Prefetch, p.config.Consumer, moved); err == nil {
		_ = n.channel.Cancel(tag, false)
	}
}

// blocked reports whether the broker reads nothing from the connection, because of an alarm.
func (n *session) blocked() bool { return n.connection.Blocked.Load() }

// errLeft is the cause of the end of a message's context.
var errLeft = errors.New("the channel of the message is closed: another process may handle it now")
