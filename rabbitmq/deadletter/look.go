package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/redelivery"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/refusal"
)

const (
	firstPrefetch = 64 // until the size of a letter is known
	mostPrefetch  = 2000
	// mostFetched bounds the bodies that are fetched and not yet looked at, in bytes.
	mostFetched = 8 << 20

	// patience is how long a look waits for the next letter before it asks the broker whether there is one.
	patience = time.Second
	// mostPatience is how often it asks, while the broker has letters and sends none.
	mostPatience = 30

	// mostReturn bounds how long a look waits until the queue has its letters back, and returnPause is how often it asks.
	mostReturn  = 5 * time.Second
	returnPause = 2 * time.Millisecond

	// nearLimit is a count of deliveries below the default limit of RabbitMQ 4.0 to 4.2, which is 20.
	nearLimit = 16
)

// A look goes once through the letters that are in a queue when it begins. Letters stay unacknowledged until it is closed, and are then
// given back in their order. It is used by one goroutine; only acknowledgements may come from others.
type look struct {
	store      *Store
	connection *dial.Connection
	channel    *amqp091.Channel
	queue      string
	total      int // letters to look at
	left       int // of these, not yet looked at

	consumers  []uint64 // the last delivery tag of each consumer, the present one's at the end
	settled    bits     // the delivery tags that are acknowledged
	deliveries <-chan amqp091.Delivery
	fetched    []amqp091.Delivery // of a consumer that is cancelled, and not yet looked at
	received   int                // by all consumers
	window     int                // prefetch of the consumer
	unsettled  int                // of its letters that stay unacknowledged
	size       int                // bytes of the letters looked at
	copies     *sender            // for letters near the delivery limit; made when the first one comes
}

// look begins to look at a queue: at all letters that are there, or at the first ones, if most is not negative.
func (s *Store) look(ctx context.Context, connection *dial.Connection, queue string, most int) (*look, error) {
	l := &look{store: s, connection: connection, queue: queue, window: firstPrefetch}
	channel, err := connection.Channel(func(channel *amqp091.Channel) error {
		state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil {
			return explain("look at", queue, err)
		}
		l.total = state.Messages
		return nil
	})
	if err != nil {
		return nil, err
	}
	if most >= 0 {
		l.total = min(l.total, most)
	}
	l.channel, l.left = channel, l.total
	if l.left == 0 {
		return l, nil
	}
	if err := l.consume(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// consume starts another consumer. A new tag for each: a quorum queue would take it for one that still has letters.
func (l *look) consume() error {
	if err := l.channel.Qos(l.window, 0, false); err != nil {
		return explain("read", l.queue, err)
	}
	deliveries, err := l.channel.Consume(l.queue, l.tag(len(l.consumers)), false, false, false, false, nil)
	if err != nil {
		return explain("read", l.queue, err)
	}
	l.deliveries, l.unsettled = deliveries, 0
	l.consumers = append(l.consumers, 0)
	return nil
}

func (l *look) tag(n int) string {
	return fmt.Sprintf("%s-%d-%09d", connectionName, l.connection.ID, n)
}

// cancel ends the consumer, and keeps what it has fetched.
func (l *look) cancel() error {
	if l.deliveries == nil {
		return nil
	}
	if err := l.channel.Cancel(l.tag(len(l.consumers)-1), false); err != nil {
		return explain("read", l.queue, err)
	}
	for d := range l.deliveries { // the client closes it
		l.received++
		l.consumers[len(l.consumers)-1] = d.DeliveryTag
		l.fetched = append(l.fetched, d)
	}
	l.deliveries = nil
	return nil
}

// next returns the next letter, or nil when the look is over. The letter is to be settled by keep or remove.
func (l *look) next(ctx context.Context) (*amqp091.Delivery, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if l.left == 0 {
		return nil, nil
	}
	if l.deliveries != nil && (l.unsettled > l.window/2 || len(l.consumers) == 1 && l.received >= firstPrefetch) {
		if err := l.cancel(); err != nil {
			return nil, err
		}
		if mean := l.size/max(l.received-len(l.fetched), 1) + 1; mean > 0 {
			l.window = min(max(mostFetched/mean, 2), mostPrefetch)
		}
	}
	if len(l.fetched) > 0 {
		d := l.fetched[0]
		l.fetched[0] = amqp091.Delivery{}
		if l.fetched = l.fetched[1:]; len(l.fetched) == 0 {
			l.fetched = nil
		}
		return l.take(d), nil
	}
	if l.deliveries == nil {
		if err := l.consume(); err != nil {
			return nil, err
		}
	}
	return l.receive(ctx)
}

func (l *look) receive(ctx context.Context) (*amqp091.Delivery, error) {
	select { // without a timer, as long as letters come
	case d, open := <-l.deliveries:
		return l.arrive(d, open)
	default:
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for asked, empty := 0, 0; ; {
		select {
		case d, open := <-l.deliveries:
			return l.arrive(d, open)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-timer.C:
			state, err := l.channel.QueueDeclarePassive(l.queue, true, false, false, false, nil)
			if err != nil {
				return nil, explain("read", l.queue, err)
			}
			if state.Messages > 0 {
				empty = 0
			} else if empty++; empty > 1 { // another reader has taken the rest
				l.left = 0
				return nil, nil
			}
			if asked++; asked > mostPatience {
				return nil, fmt.Errorf("the queue %q has %d letters and delivers none to this consumer: another consumer is its single active "+
					"consumer; stop that one first", l.queue, state.Messages)
			}
			timer.Reset(patience)
		}
	}
}

func (l *look) arrive(d amqp091.Delivery, open bool) (*amqp091.Delivery, error) {
	if !open {
		l.deliveries = nil
		if l.connection.Client.IsClosed() {
			return nil, fmt.Errorf("%w: %w", errLost, l.connection.CloseReason())
		}
		if l.channel.IsClosed() {
			return nil, fmt.Errorf("%w: the broker closed the channel", errLost)
		}
		return nil, fmt.Errorf("%w: %q was deleted, or its node has stopped, while it was read", errLost, l.queue)
	}
	l.received++
	l.consumers[len(l.consumers)-1] = d.DeliveryTag
	return l.take(d), nil
}

func (l *look) take(d amqp091.Delivery) *amqp091.Delivery {
	l.left--
	l.size += len(d.Body)
	return &d
}

// keep leaves a letter in the queue. If it is near the delivery limit, a copy at the end of the queue takes its place.
func (l *look) keep(ctx context.Context, d *amqp091.Delivery) error {
	if redelivery.Count(d.Headers) < nearLimit || l.store.unlimited(d, l.queue) {
		l.unsettled++
		return nil
	}
	if l.copies == nil {
		copies, err := l.store.newSender()
		if err != nil {
			return err
		}
		l.copies = copies
	}
	if err := l.copies.send(ctx, destination{key: l.queue}, same(d)); err != nil {
		return fmt.Errorf("letter %q was delivered %d times, and quorum queues remove a letter after 20 deliveries by default; it cannot be replaced "+
			"by a copy: %w", d.MessageId, redelivery.Count(d.Headers), err)
	}
	return l.remove(d)
}

// remove acknowledges a letter. It may be called by any goroutine.
func (l *look) remove(d *amqp091.Delivery) error {
	if err := d.Ack(false); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	l.settled.set(d.DeliveryTag)
	return nil
}

// unlimited reports whether the library has declared the queue of a letter, without a delivery limit that can be reached: the letter
// came through the library's own exchange.
func (s *Store) unlimited(d *amqp091.Delivery, queue string) bool {
	work := naming.WorkQueueOf(queue)
	return queue == s.prefix.Orphans() || d.Exchange != "" && d.RoutingKey == naming.DeadKey(work) && queue == naming.DeadQueue(work)
}

// arrived returns how many letters are in the queue behind those to look at. It ends the consumer, and the next call of next starts
// another.
func (l *look) arrived() (int, error) {
	if err := l.cancel(); err != nil {
		return 0, err
	}
	state, err := l.channel.QueueDeclarePassive(l.queue, true, false, false, false, nil)
	if err != nil {
		return 0, explain("read", l.queue, err)
	}
	return max(state.Messages-(l.total-l.received), 0), nil
}

// settle waits until the broker has read all acknowledgements so far.
func (l *look) settle() error { return l.channel.Qos(l.window, 0, false) }

// close gives back what is unacknowledged, in its order, and waits until the queue has it: a reader that comes before gets it in another
// order.
func (l *look) close() {
	if l.copies != nil {
		l.copies.close()
	}
	defer func() { _ = l.channel.Close() }()
	if l.cancel() != nil {
		return
	}
	deadline, want := time.Now().Add(mostReturn), l.ready()
	for returned := range l.returns() {
		if l.channel.Nack(returned.last, true, true) != nil {
			return
		}
		want += returned.letters
		for ready := l.ready(); ready >= 0 && ready < want && time.Now().Before(deadline); ready = l.ready() { // another reader may take them
			time.Sleep(returnPause)
		}
	}
}

// A batch is letters that are given back with one nack: those up to a delivery tag.
type batch struct {
	last    uint64
	letters int
}

// returns goes through what is unacknowledged, in batches of one consumer. Up to RabbitMQ 3.13 a quorum queue keeps the order of at most
// 32 letters.
func (l *look) returns() iter.Seq[batch] {
	most := math.MaxInt
	if strings.HasPrefix(l.connection.Version(), "3.") {
		most = 32
	}
	return func(yield func(batch) bool) {
		tag := uint64(1)
		for _, last := range l.consumers {
			next := batch{}
			for ; tag <= last; tag++ {
				if l.settled.has(tag) {
					continue
				}
				next.last, next.letters = tag, next.letters+1
				if next.letters == most {
					if !yield(next) {
						return
					}
					next = batch{}
				}
			}
			if next.letters > 0 && !yield(next) {
				return
			}
		}
	}
}

// ready returns how many letters the queue can deliver, or -1 where the broker does not answer.
func (l *look) ready() int {
	state, err := l.channel.QueueDeclarePassive(l.queue, true, false, false, false, nil)
	if err != nil {
		return -1
	}
	return state.Messages
}

// errLost is the error of a call whose connection or consumer ended under way.
var errLost = errors.New("the connection to the broker was lost")

// explain adds what to do to an error of the broker.
func explain(what, queue string, err error) error {
	switch {
	case refusal.IsCode(err, amqp091.NotFound):
		return fmt.Errorf("cannot %s %q: %w: %w", what, queue, letters.ErrNoQueue, err)
	case refusal.IsCode(err, amqp091.AccessRefused):
		return fmt.Errorf("cannot %s %q: %w: give the user the permission that the broker names, see docs/dead-letters.md", what, queue, err)
	case errors.Is(err, amqp091.ErrClosed) || refusal.IsCode(err, amqp091.ConnectionForced):
		return fmt.Errorf("cannot %s %q: %w: %w", what, queue, errLost, err)
	}
	return fmt.Errorf("cannot %s %q: %w", what, queue, err)
}

// bits is a set of delivery tags: these are 1, 2, 3 and so on. It is safe for concurrent use.
type bits struct {
	mu    sync.Mutex
	words []uint64
}

func (b *bits) set(tag uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uint64(len(b.words)) <= tag/64 {
		b.words = append(b.words, 0)
	}
	b.words[tag/64] |= 1 << (tag % 64)
}

func (b *bits) has(tag uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return tag/64 < uint64(len(b.words)) && b.words[tag/64]&(1<<(tag%64)) != 0
}
