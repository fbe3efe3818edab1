package ordered

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channel"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/dispatch"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/subscriber"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// Why a session ends.
const (
	errNacked  subscriber.Planned = "a message was nacked"
	errWaits   subscriber.Planned = "a message waits for half of the consumer timeout"
	errBalance subscriber.Planned = "another process has fewer partitions"
)

var (
	errDeposed = errors.New("the broker has delivered a message again that is still here: it took this consumer for lost")
	errAlarm   = errors.New("the broker reads nothing, because of an alarm")
)

// A partition is the loop of a queue that keeps an order, or of its intake. Each session ends in the same way, whatever
// the reason: nothing more is handed out, the calls that run end, their acks are sent, and the channel is closed. The
// broker then puts back all that is left, in its order, and only then gives messages to the next consumer. A
// basic.cancel would give the next consumer what is behind the messages that are not acknowledged, and so would a nack
// of some of them.
type partition struct {
	*subscriber.Loop
	of      *subscription
	number  int // -1: the intake
	current atomic.Pointer[session]
	held    atomic.Int64 // messages that wait for their retry, or that are blocked
	behind  atomic.Int64 // messages behind them
	blocked atomic.Pointer[[]blockedArrival]

	// Only the dispatcher's goroutine uses the following.
	keys    dispatch.Keys
	waiting map[*dispatch.Arrival]bool // messages that are held, with their keys taken
	kept    map[uint64]*keeping
}

func (s *subscription) add(queue string, number int) {
	p := &partition{of: s, number: number, keys: dispatch.Keys{}, waiting: map[*dispatch.Arrival]bool{},
		kept: map[uint64]*keeping{}}
	p.blocked.Store(new([]blockedArrival))
	p.Loop = s.NewLoop(queue, p, number < 0, watermill.LogFields{"partition": queue})
	s.partitions = append(s.partitions, p)
}

// A session is one consumer of a partition.
type session struct {
	*channel.Session
	of          *partition
	intake      *intake         // nil: this is another partition
	values      context.Context // the values of the contexts of its messages
	leaveValues context.CancelCauseFunc
	holds       context.Context    // ended: what is held after its call goes back
	endHolds    context.CancelFunc // ends holds
	ages        ages
}

// Begin implements subscriber.Kind. The prefetch is the same for the life of the queue: after a larger one, a smaller
// one would give the next consumer messages in another order. The intake has the connection that moves messages.
func (p *partition) Begin(current *wire.Connection) (subscriber.Session, error) {
	if p.Places.Limit() == 0 {
		return nil, nil
	}
	if p.number < 0 {
		var err error
		if current, err = p.of.connection.mover(p.Stopping.Done()); err != nil {
			return nil, err
		}
	}
	open, err := current.OpenChannel()
	if err != nil {
		return nil, err
	}
	if p.number >= 0 {
		return p.on(current, open, nil)
	}
	moving := newIntake(channelMover{open}, open.NotifyReturn(make(chan amqp091.Return, p.of.order.Prefetch)))
	if err = open.Confirm(false); err == nil { // and this process is a member
		_, err = open.Consume(p.of.members, "", false, false, false, false, nil)
	}
	if err != nil {
		_ = open.Close()
		return nil, err
	}
	return p.on(current, open, moving)
}

func (p *partition) on(current *wire.Connection, open channel.AMQP, moving *intake) (n *session, err error) {
	n = &session{of: p, intake: moving}
	n.values, n.leaveValues = context.WithCancelCause(p.Values)
	n.holds, n.endHolds = context.WithCancel(context.Background())
	n.Session, err = p.Open(current, open, p.of.order.Prefetch, true, channel.MovesConsumers(current.Version()))
	return n, err
}

// Feed implements subscriber.Session.
func (n *session) Feed() {
	n.of.current.Store(n)
	go func() {
		for delivery := range n.Deliveries {
			n.of.Tell(func(*dispatch.Arrival) { n.receive(delivery) }, nil)
		}
	}()
}

// receive is called for each delivery.
func (n *session) receive(delivery amqp091.Delivery) {
	n.ages.add(delivery.DeliveryTag)
	if n.Gone().Err() != nil || n.of.Stopping.Err() != nil || !n.Users.Enter() {
		n.Leave(errNacked)
		return
	}
	n.of.Arrive(n, delivery, n.of.Config.OrderKey, n.add)
}

func (n *session) add(a *dispatch.Arrival) {
	n.prepare(a)
	n.of.take(a)
	if n.of.keys.Add(a) {
		n.of.first(a)
	} else if first, _ := n.of.keys.Behind(a.Key); n.of.waiting[first] {
		n.of.behind.Add(1)
	}
}

func (n *session) prepare(a *dispatch.Arrival) {
	n.of.Prepare(a, n.values, n.Lost)
	a.Of.Leaving = n.holds.Done()
}

// first is called when a message is the first one of its key. It is handed out, or held until it is due. One of the
// intake is moved, and takes no place: while the broker confirms nothing, the handlers go on.
func (p *partition) first(a *dispatch.Arrival) {
	n, kept := sessionOf(a), keptOf(a)
	switch {
	case n.intake != nil && a.Err == nil && p.Stopping.Err() == nil && n.Gone().Err() == nil:
		p.Workers.Go(func() { n.move(a) })
	case kept != nil && kept.waits():
		p.hold(a)
	default:
		p.Add(a)
	}
}

func sessionOf(a *dispatch.Arrival) *session { return a.Source.(*session) }

// GiveBack implements dispatch.Source. It forgets where a message is whose session ends, and lets the next one of its
// key follow: it is of another session.
func (n *session) GiveBack(a *dispatch.Arrival) {
	if kept := keptOf(a); kept != nil {
		kept.at, kept.left = nil, time.Now()
	}
	n.leave(a)
	settled(a)
}

// Settle implements dispatch.Source. After a nack, all that is not settled goes back together, when the channel is
// closed.
func (n *session) Settle(a *dispatch.Arrival, acked bool) {
	switch {
	case acked && a.Of.Again != nil:
		n.retain(a)
		return
	case acked:
		if acked = n.of.Ack(n.Session, a); !acked && errors.Is(context.Cause(a.Of), msgctx.ErrOutlived) {
			n.outlive(a, msgctx.ErrOutlived)
		}
	default:
		if a.Of.Outlived != nil {
			n.outlive(a, a.Of.Outlived)
		}
		n.Leave(errNacked)
	}
	switch {
	case keptOf(a) != nil:
		n.of.Tell(func(a *dispatch.Arrival) {
			n.of.forget(a, acked)
			n.leave(a)
			settled(a)
		}, a)
	case a.Key != "":
		n.leave(a)
		n.of.Tell(settled, a)
	default:
		n.leave(a)
		a.Free()
	}
}

// leave is called when the delivery was acked, nacked or lost.
func (n *session) leave(a *dispatch.Arrival) {
	n.of.Leave(a)
	n.Users.Leave()
}

// settled lets the next message of the key follow.
func settled(a *dispatch.Arrival) {
	p := sessionOf(a).of
	if next := p.keys.Release(a); next != nil {
		p.take(next) // the call before it may have been with the same message
		p.first(next)
	}
	a.Free()
}

// Keep implements subscriber.Session. In an alarm, a pause does not end the intake: the broker reads what was moved,
// and the end, when the alarm is over, and would get it twice.
func (n *session) Keep() error {
	p, timeout := n.of, n.of.of.order.ConsumerTimeout
	look := time.NewTicker(min(balancePeriod, timeout/10))
	defer look.Stop()
	looked := time.Now()
	for {
		if p.Places.Limit() == 0 && (n.intake == nil || !n.blocked()) {
			return nil
		}
		select {
		case <-n.Gone().Done():
			return n.Reason()
		case <-p.Stopping.Done():
			return nil
		case <-p.Changes:
		case <-look.C:
			if n.waited() > timeout/2 {
				return errWaits
			}
			if time.Since(looked) >= balancePeriod {
				looked = time.Now()
				if n.hasTooMany() {
					return errBalance
				}
			}
		}
	}
}

// Retire implements subscriber.Session. It waits for the calls that run: at a shutdown for CloseTimeout, else until
// shortly before the consumer timeout, after which the broker may take back a part. Then their contexts end, and a
// second later the broker delivers their messages again. Those wait for their keys until the calls have ended. What is
// held after its call goes back at once, and so does a message of the intake that is not confirmed soon. Only a pause
// waits for what is held, until its end: it may be the reason of the pause, and would come again at once.
func (n *session) Retire(reason error) {
	n.Leave(reason)
	if reason != nil || n.of.Stopping.Err() != nil {
		n.endHolds()
	}
	n.of.Do(func() { n.of.giveBack(n) })
	empty := n.Users.Close()
	if n.outlasts(empty, n.patience()) {
		n.leaveValues(msgctx.ErrOutlived)
		n.outlasts(empty, subscriber.GiveUpAfter)
	}
	n.Flush()
	if n.intake != nil && n.blocked() { // it answers when the alarm is over
		go n.CloseAcked()
		n.End(errAlarm)
	} else {
		n.Within(channel.AnswerTimeout, n.CloseAcked)
	}
	n.leaveValues(errLeft)
	n.of.current.CompareAndSwap(n, nil)
}

// outlasts waits for what a session has handed out, or moves, and reports whether that lasts too long. When a pause is
// over, what is held goes back: all keys of the partition stand until then. Where the handler pauses again and again,
// what is held is handled at most once in balancePeriod.
func (n *session) outlasts(empty <-chan struct{}, patience time.Duration) bool {
	p, late := n.of, time.After(patience)
	var resumed <-chan time.Time
	for {
		select {
		case <-empty:
			return false
		case <-n.Lost.Done():
			return false
		case <-p.GivenUp.Done():
			return false
		case <-late:
			return true
		case <-p.Changes:
			if resumed = nil; p.Places.Limit() > 0 {
				resumed = time.After(time.Until(time.Unix(0, p.Since.Load()).Add(balancePeriod)))
			}
		case <-resumed:
			n.endHolds()
		}
	}
}

// patience is how long the end of a session waits for what is handed out, or moved.
func (n *session) patience() time.Duration {
	switch {
	case n.intake == nil:
		return n.of.of.order.ConsumerTimeout*9/10 - n.waited()
	case n.blocked():
		return 0
	default:
		return channel.AnswerTimeout
	}
}

// Rest implements subscriber.Kind. A session leaves nothing.
func (p *partition) Rest() {}

// waited is for how long the oldest delivery has not been acknowledged.
func (n *session) waited() time.Duration { return n.ages.of(n.Lowest()) }

// blocked reports whether the broker reads nothing from the connection, because of an alarm.
func (n *session) blocked() bool { return n.Connection.Blocked.Load() }

// errLeft is the cause of the end of a message's context.
var errLeft = errors.New("the channel of the message is closed: another process may handle it now")

// ages has when deliveries arrived, at the precision of a second.
type ages struct {
	mu   sync.Mutex
	list []age // ascending
	last uint64
}

type age struct {
	first uint64 // the delivery tag
	at    time.Time
}

func (a *ages) add(tag uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = tag
	if n := len(a.list); n == 0 || time.Since(a.list[n-1].at) > time.Second {
		a.list = append(a.list, age{tag, time.Now()})
	}
}

// arrived returns the delivery tag of the last delivery. 0: there was none.
func (a *ages) arrived() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// of returns how old a delivery is, or a second more, and forgets those before it. It is 0 where it has not arrived.
func (a *ages) of(tag uint64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.list) > 1 && a.list[1].first <= tag {
		a.list = a.list[1:]
	}
	if tag > a.last {
		return 0
	}
	return time.Since(a.list[0].at)
}
