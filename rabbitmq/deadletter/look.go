package deadletter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/queuearg"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	firstPrefetch = 8 // the prefetch until the size of a letter is known
	mostPrefetch  = 2000
	// mostFetched bounds the bodies that are fetched and not yet looked at, in bytes.
	mostFetched = 8 << 20

	// patience is how long a look waits for the next letter before it asks the broker whether there is one.
	patience = time.Second
	// mostPatience is how often it asks, while the broker has letters and sends none.
	mostPatience = 30

	// mostUnapplied is how many acknowledgements a channel sends on before a quorum queue has applied them.
	mostUnapplied = 32

	// mostCounts is how often a count of 0 is asked for again.
	mostCounts = 3
)

// A look goes once through the letters that are in a queue when it begins. Letters stay unacknowledged until it is
// closed, and are then given back in their order. It is used by one goroutine; only acknowledgements may come from
// others.
type look struct {
	store      *Store
	connection *wire.Connection
	channel    *amqp091.Channel
	queue      string
	total      int // letters to look at
	left       int // how many of these are not yet looked at
	least      int // how many of these are certainly there
	missing    int // how many of these are not there

	arguments  amqp091.Table // the arguments of the consumers
	consumers  []uint64      // the last delivery tag of each consumer, the present one's at the end
	gets       []getTag      // letters from basic.get
	settled    bits          // the delivery tags that are acknowledged
	deliveries <-chan amqp091.Delivery
	fetched    []amqp091.Delivery // what a consumer that is cancelled has fetched, and that is not yet looked at
	received   int                // how many all consumers have received
	window     int                // the largest prefetch of the next consumer
	prefetch   int                // the prefetch of the present consumer
	widest     int                // the largest that window may become
	doubt      atomic.Int64       // acknowledgements that the queue may not have yet
	size       int                // bytes of the letters looked at
	limit      limit              // the delivery limit of the queue
	mu         sync.Mutex         // guards near
	// letters to replace by copies that were looked at, and not yet kept or removed
	near map[uint64]*amqp091.Delivery
	// the letters are to keep their order; not where a look reads its own copies
	ordered  bool
	kept     []*amqp091.Delivery // what is kept, and has no copy yet
	keptSize int                 // bytes of their bodies
	copies   *sender             // for letters near the limit; made when the first ones are copied
	stays    error               // the first error of a letter that cannot be replaced by a copy
	caution  caution
	of       *look // the look at the letters before, on the same connection; may be nil
}

// look begins to look at a queue: at all letters that are there, or at the first ones, if most is not negative. Then
// it waits for the least number of letters: after a lost connection the broker may not have given all of them back
// yet. The delivery limit is that of another look at the queue, where that is not nil and has found one.
func (s *Store) look(
	ctx context.Context, connection *wire.Connection, queue string, least, most int, c caution, of *look,
) (*look, error) {
	l := &look{store: s, connection: connection, queue: queue, window: firstPrefetch, widest: mostPrefetch,
		least: least, arguments: keepLong, caution: c, of: of}
	_, err := connection.Channel(func(channel *amqp091.Channel) (err error) {
		l.channel = channel
		l.total, err = l.count("look at")
		return err
	})
	if err == nil && l.total == 0 {
		err = l.first()
	}
	if err != nil {
		return l, err
	}
	switch {
	case of != nil && of.total > 0:
		l.limit = of.limit
	case l.total > 0:
		if err := l.findLimit(ctx); err != nil {
			_ = l.channel.Close()
			return l, err
		}
	}
	if most >= 0 {
		l.total = most
	}
	l.left = l.total
	if l.left == 0 {
		return l, nil
	}
	if err = l.consumeLong(); err != nil {
		return l, errors.Join(err, l.close(ctx))
	}
	return l, nil
}

// count counts the letters that the queue can deliver. RabbitMQ counts 0 in a quorum queue that does not answer
// within 250 ms.
func (l *look) count(what string) (ready int, err error) {
	for range mostCounts {
		state, err := l.channel.QueueDeclarePassive(l.queue, true, false, false, false, nil)
		if err != nil {
			return 0, explain(what, l.queue, err)
		}
		if ready = state.Messages; ready > 0 {
			break
		}
	}
	return ready, nil
}

// first fetches a letter of a queue that seems to be empty, because a count of 0 is not certain. The delivery limit
// is not known then: it is found only for a queue that has letters.
func (l *look) first() error {
	d, found, err := l.channel.Get(l.queue, false)
	if err != nil {
		return explain("read", l.queue, err)
	}
	if found {
		l.total, l.received = 1+int(d.MessageCount), 1
		l.fetched, l.gets = []amqp091.Delivery{d}, []getTag{{d.DeliveryTag, 0}}
	}
	return nil
}

// keepLong lets a consumer have letters for longer than the 30 minutes that are RabbitMQ's default. From 4.3 on a
// quorum queue gives them back after that time, and the acknowledgement of a letter that was sent then has no effect.
// Earlier versions do not read it: they close the channel, and a redrive goes on with another look.
var keepLong = amqp091.Table{queuearg.ConsumerTimeout: (28 * 24 * time.Hour).Milliseconds()}

// consumeLong starts the first consumer, with keepLong where the broker takes it.
func (l *look) consumeLong() error {
	err := l.consume()
	if !refusal.IsCode(err, amqp091.PreconditionFailed) {
		return err
	}
	// RabbitMQ 4.3 accepts the argument for quorum queues only, and no other queue takes letters back.
	channel, err := l.connection.OpenChannel()
	if err != nil {
		return explain("read", l.queue, err)
	}
	l.channel, l.arguments = channel, nil
	return l.consume()
}

// consume starts another consumer. A new tag for each: a quorum queue would take it for one that still has letters.
func (l *look) consume() error {
	l.prefetch = l.ahead()
	err := l.channel.Qos(l.prefetch, 0, false)
	if err == nil {
		l.deliveries, err = l.channel.Consume(l.queue, l.tag(len(l.consumers)), false, false, false, false, l.arguments)
	}
	if err != nil {
		return explain("read", l.queue, err)
	}
	l.consumers = append(l.consumers, 0)
	l.settled.begin(l.last())
	return nil
}

// last returns the last delivery tag.
func (l *look) last() (tag uint64) {
	if n := len(l.consumers); n > 0 {
		tag = l.consumers[n-1]
	}
	if n := len(l.gets); n > 0 {
		tag = max(tag, l.gets[n-1].tag)
	}
	return tag
}

// occupied is how much of the prefetch of the consumer is taken by letters that are not acknowledged.
func (l *look) occupied() int {
	begin, acknowledged := l.settled.since()
	return int(l.last()-begin) - acknowledged
}

func (l *look) tag(n int) string {
	return fmt.Sprintf("%s-%d-%09d", connectionName, l.connection.Number(), n)
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
	if l.single() { // a lost connection would leave the letters beside their copies
		if err := l.replace(ctx); err != nil {
			return nil, err
		}
	}
	// nothing is under way, which would lose its place in the queue
	if l.deliveries != nil && l.occupied() >= l.prefetch {
		if err := l.cancel(); err != nil {
			return nil, err
		}
		mean := l.size/max(l.received-len(l.fetched), 1) + 1
		l.window = min(max(mostFetched/mean, firstPrefetch), l.widest)
	}
	if len(l.fetched) > 0 {
		d := l.fetched[0]
		l.fetched[0] = amqp091.Delivery{} // its body is not kept
		l.fetched = l.fetched[1:]
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
			asked++
			if state.Messages > 0 {
				empty = 0
			} else if empty++; empty > 2 && l.total-l.left >= l.least || asked > mostPatience {
				// Another reader has taken the rest.
				l.left, l.missing = 0, l.left
				return nil, nil
			}
			if asked > mostPatience {
				return nil, fmt.Errorf("the queue %q has %d letters and delivers none to this consumer: another "+
					"consumer is its single active consumer; stop that one first", l.queue, state.Messages)
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
	l.note(&d)
	return &d
}

// remove acknowledges a letter. It may be called by any goroutine.
func (l *look) remove(d *amqp091.Delivery) error {
	if err := d.Ack(false); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	l.forget(d)
	l.settled.set(d.DeliveryTag)
	l.doubt.Add(1)
	return nil
}

// arrived returns how many letters are in the queue behind those to look at. It ends the consumer, and the next call
// of next starts another.
func (l *look) arrived() (int, error) {
	if err := l.cancel(); err != nil {
		return 0, err
	}
	ready, err := l.count("read")
	if err != nil {
		return 0, err
	}
	return max(ready+l.received-l.total, 0), nil
}

// settle waits until the queue has all acknowledgements so far. A channel keeps them back while a quorum queue has
// more than mostUnapplied that it has not applied, and forgets these when it is closed: the queue would give their
// letters back. A basic.get is applied after what the queue has got before, and then the channel sends what it has kept
// back; so the second one comes after everything. The letters of both stay fetched.
func (l *look) settle() error {
	doubt := l.doubt.Swap(0)
	if doubt == 0 {
		return nil
	}
	var next []amqp091.Delivery
	for range 2 {
		d, found, err := l.channel.Get(l.queue, false)
		if err != nil && doubt <= mostUnapplied && errors.Is(endedByLetter(l.connection), wire.ErrUnreadable) {
			return nil // the channel had all acknowledgements, and kept none of them back
		}
		if err != nil {
			return explain("read", l.queue, err)
		}
		if found {
			next = append(next, d)
		}
	}
	if err := l.cancel(); err != nil { // what the consumer gets for the acknowledged letters has come before
		return err
	}
	for _, d := range next {
		l.received++
		l.gets, l.fetched = append(l.gets, getTag{d.DeliveryTag, len(l.consumers)}), append(l.fetched, d)
	}
	return nil
}

// errLost is the error of a call whose connection or consumer ended under way.
var errLost = errors.New("the connection to the broker was lost")

// explain adds what to do to an error of the broker. Some versions do not name the permission.
func explain(what, queue string, err error) error {
	switch {
	case refusal.IsCode(err, amqp091.NotFound):
		return fmt.Errorf("cannot %s %q: %w: %w", what, queue, letters.ErrNoQueue, err)
	case refusal.IsCode(err, amqp091.AccessRefused):
		return fmt.Errorf("cannot %s %q: %w: the user needs the permission to read this queue, see "+
			"docs/dead-letters.md", what, queue, err)
	case wire.IsLost(err):
		return fmt.Errorf("cannot %s %q: %w: %w", what, queue, errLost, err)
	}
	return fmt.Errorf("cannot %s %q: %w", what, queue, err)
}
