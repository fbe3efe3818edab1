package inflight

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

// aheadFor is how long the handler has work with the messages that are taken ahead. It is short: what one process has
// taken, another one that is idle does not get.
const aheadFor = 50 * time.Millisecond

// Most returns how many messages are in flight at most.
func Most(concurrency int) int {
	if concurrency <= 1 {
		return 1 // the next message is taken after the ack of the one before
	}
	return 8 * concurrency
}

// Reader delivers the messages of a Queue and settles them. The messages that are in flight when its subscription ends
// go on until they are settled, or until Close.
type Reader struct {
	Config
	places chan struct{} // wakes what takes; has room for one
	acks   chan struct{} // wakes what acknowledges; has room for one
	backs  chan struct{} // wakes what gives back and renews; has room for one
	closed context.Context
	close  context.CancelFunc
	ended  sync.WaitGroup

	mu       sync.Mutex
	inFlight map[*Taken]context.CancelFunc // each with what ends the context of its message
	acked    []*Taken                      // what the handler has acked, and is not yet on the server
	nacked   []*Taken
	ahead    int           // messages that the handler has not got yet
	call     time.Duration // mean of the last calls of the handler
	reading  bool
}

// NewReader returns a reader, which does nothing before Subscribe.
func NewReader(config Config) *Reader {
	config.Concurrency = max(config.Concurrency, 1)
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	r := &Reader{
		Config: config, places: make(chan struct{}, 1), acks: make(chan struct{}, 1), backs: make(chan struct{}, 1),
		inFlight: map[*Taken]context.CancelFunc{}, call: aheadFor,
	}
	r.closed, r.close = context.WithCancel(context.Background())
	return r
}

// Subscribe delivers messages until the context ends, and then closes the channel. It is called once.
func (r *Reader) Subscribe(ctx context.Context) <-chan *message.Message {
	out := make(chan *message.Message)
	reading, stop := context.WithCancel(ctx)
	context.AfterFunc(r.closed, stop)
	r.reading = true
	ahead := make(chan *Taken, Most(r.Concurrency))
	r.ended.Go(func() {
		defer close(ahead)
		r.read(reading, ahead)
	})
	r.ended.Go(func() {
		defer stop()
		r.deliver(reading, ahead, out)
		close(out)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reading = false
		signal(r.acks)
		signal(r.backs)
	})
	r.ended.Go(func() { r.settle(r.acks, nil, r.acknowledge) })
	r.ended.Go(func() {
		renew := time.NewTicker(r.Lease / 3)
		defer renew.Stop()
		r.settle(r.backs, renew.C, r.giveBack)
	})
	return out
}

// Close ends the subscription and the contexts of the messages in flight, and gives back what is not settled.
func (r *Reader) Close() error {
	r.close()
	r.ended.Wait()
	return nil
}

// read takes messages, while those before are delivered.
func (r *Reader) read(ctx context.Context, ahead chan<- *Taken) {
	for failures := 0; ; {
		room := r.room(ctx)
		if room == 0 {
			return
		}
		taken, err := r.Queue.Take(ctx, room)
		if err != nil && ctx.Err() == nil {
			subscriptions.Read(ctx, err)
			if failures == 0 { // in an outage, each topic of the process fails all the time
				r.Logger.Error("Cannot read a topic, trying again", err, r.fields())
			}
			_ = pauses.Sleep(ctx, pauses.After(failures))
			failures++
		} else if err == nil {
			failures = 0
		}
		r.keep(ctx, taken)
		for _, one := range taken {
			ahead <- one
		}
	}
}

// room waits until messages are to be taken, and returns how many. It returns 0 where the context has ended.
func (r *Reader) room(ctx context.Context) int {
	for ctx.Err() == nil {
		if n := r.free(); n > 0 {
			return n
		}
		select {
		case <-r.places:
		case <-ctx.Done():
		}
	}
	return 0
}

// free returns how many messages are to be taken. They are twice the concurrency in flight, and more where calls are
// short: each take and each ack is a round trip. While some are ahead, a take is for at least half of all.
func (r *Reader) free() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := Most(r.Concurrency)
	most = min(most, max(2*r.Concurrency, int(time.Duration(r.Concurrency)*aheadFor/max(r.call, 1))))
	free := most - len(r.inFlight)
	if r.ahead > 0 && free < most/2 {
		return 0
	}
	return max(free, 0)
}

// deliver delivers what is taken, until the context ends. It gives back the rest.
func (r *Reader) deliver(ctx context.Context, ahead <-chan *Taken, out chan<- *message.Message) {
	for one := range ahead {
		if ctx.Err() != nil || !r.begin(one) {
			r.settled(one, false)
			continue
		}
		select {
		case out <- one.Message:
			go r.await(one, time.Now())
			continue
		case <-one.Message.Context().Done(): // its lease is lost
		case <-ctx.Done():
		}
		r.settled(one, false)
	}
}

// begin reports whether a message can be delivered: its lease may have been lost meanwhile.
func (r *Reader) begin(one *Taken) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead--
	signal(r.places)
	return !one.lost()
}

// keep adds messages to those in flight. Their contexts do not end with the subscription.
func (r *Reader) keep(ctx context.Context, taken []*Taken) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead += len(taken)
	for _, one := range taken {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one.Message.SetContext(own)
		one.lease = time.Now().Add(r.Lease)
		r.inFlight[one] = cancel
	}
}

// await waits until a handler has settled a message.
func (r *Reader) await(one *Taken, began time.Time) {
	acked := false
	select {
	case <-one.Message.Acked():
		acked = true
	case <-one.Message.Nacked():
	case <-r.closed.Done():
		select {
		case <-one.Message.Acked():
			acked = true
		default:
		}
	}
	r.mu.Lock()
	r.call += (time.Since(began) - r.call) / 16
	r.mu.Unlock()
	r.settled(one, acked)
}

func (r *Reader) settled(one *Taken, acked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one.settled = true
	if acked {
		r.acked = append(r.acked, one)
		signal(r.acks)
	} else {
		r.nacked = append(r.nacked, one)
		signal(r.backs)
	}
}

func signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// settle tells the server what is settled, and renews the leases of the rest, until nothing is in flight any more. Acks
// have a goroutine of their own: slow ones must not delay renewals. What is given back must not be renewed after that.
func (r *Reader) settle(wake <-chan struct{}, renew <-chan time.Time, flush func() bool) {
	again := time.NewTimer(0)
	defer again.Stop()
	for failures := 0; !r.finished(); {
		select {
		case <-wake:
		case <-renew:
			r.renew()
			continue
		case <-again.C:
		}
		if flush() {
			failures = 0
		} else {
			again.Reset(pauses.After(failures))
			failures++
		}
	}
}

func (r *Reader) finished() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.reading && len(r.inFlight) == 0
}

func (r *Reader) acknowledge() bool {
	r.mu.Lock()
	acked := r.acked
	r.acked = nil
	r.mu.Unlock()
	failed := r.send("Cannot acknowledge messages", r.Queue.Ack, acked)
	return r.release(acked, failed, &r.acked)
}

func (r *Reader) giveBack() bool {
	r.mu.Lock()
	nacked := r.nacked
	r.nacked = nil
	back := slices.DeleteFunc(slices.Clone(nacked), (*Taken).lost)
	r.mu.Unlock()
	failed := r.send("Cannot give messages back", r.Queue.GiveBack, back)
	return r.release(nacked, failed, &r.nacked)
}

// release ends the messages that are settled, and reports whether these are all. What the server has not taken is sent
// again, until its lease has ended or the reader is closed: then the server delivers it again.
func (r *Reader) release(sent, failed []*Taken, list *[]*Taken) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := map[*Taken]bool{}
	for _, one := range failed {
		if r.closed.Err() == nil && time.Now().Before(one.lease) {
			kept[one] = true
			*list = append(*list, one)
		}
	}
	for _, one := range sent {
		if !kept[one] {
			r.inFlight[one]()
			delete(r.inFlight, one)
		}
	}
	signal(r.places)
	if !r.reading && len(r.inFlight) == 0 {
		signal(r.acks) // the other goroutine ends too
		signal(r.backs)
	}
	return len(kept) == 0
}

// send returns the messages where the server does not answer.
func (r *Reader) send(failure string, call func(context.Context, []*Taken) error, taken []*Taken) []*Taken {
	if len(taken) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), r.Lease/6)
	defer cancel()
	err := call(ctx, taken)
	if err == nil {
		return nil
	}
	r.Logger.Error(failure, err, r.fields().Add(watermill.LogFields{"messages": len(taken)}))
	return taken
}

// renew renews the leases of the messages that handlers have. Where one is lost, the message may be with another
// reader, so its context ends. A settled one is not renewed: a server that never confirms that must not keep its place.
func (r *Reader) renew() {
	r.mu.Lock()
	var taken []*Taken
	for one, end := range r.inFlight {
		switch {
		case one.lost(): // as after a pause of the process
			end()
		case !one.settled:
			taken = append(taken, one)
		}
	}
	r.mu.Unlock()
	began := time.Now()
	var lost []*Taken
	failed := r.send("Cannot renew the leases of messages", func(ctx context.Context, taken []*Taken) (err error) {
		lost, err = r.Queue.Renew(ctx, taken)
		return err
	}, taken)
	r.mu.Lock()
	defer r.mu.Unlock()
	if failed == nil {
		for _, one := range taken {
			one.lease = began.Add(r.Lease)
		}
	}
	for _, one := range lost {
		one.ended = true
	}
	for _, one := range taken {
		if end := r.inFlight[one]; end != nil && !one.settled && one.lost() {
			end()
		}
	}
}

func (r *Reader) fields() watermill.LogFields { return watermill.LogFields{"topic": r.Name} }

// String returns the name of the topic.
func (r *Reader) String() string { return fmt.Sprintf("reader of %s", r.Name) }
