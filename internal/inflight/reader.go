package inflight

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// Reader delivers the messages of a Queue and settles them. The messages that are in flight when its subscription ends
// go on until they are settled, or until Close.
type Reader struct {
	Config
	places chan struct{} // has one for each message in flight
	acks   chan struct{} // wakes what acknowledges; has room for one
	backs  chan struct{} // wakes what gives back and renews; has room for one
	closed context.Context
	close  context.CancelFunc
	ended  sync.WaitGroup

	mu       sync.Mutex
	inFlight map[*Taken]context.CancelFunc // of its message's context
	acked    []*Taken                      // by the handler, and not yet on the server
	nacked   []*Taken
	reading  bool
}

// NewReader returns a reader, which does nothing before Subscribe.
func NewReader(config Config) *Reader {
	config.Concurrency = max(config.Concurrency, 1)
	if config.Logger == nil {
		config.Logger = watermill.NopLogger{}
	}
	ahead := 2 * config.Concurrency
	if config.Concurrency == 1 {
		ahead = 1
	}
	r := &Reader{
		Config: config, places: make(chan struct{}, ahead), acks: make(chan struct{}, 1),
		backs: make(chan struct{}, 1), inFlight: map[*Taken]context.CancelFunc{},
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
	r.ended.Go(func() {
		defer stop()
		r.read(reading, out)
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

// read takes messages and delivers them.
func (r *Reader) read(ctx context.Context, out chan<- *message.Message) {
	for failures := 0; ; {
		room := r.room(ctx)
		if room == 0 {
			return
		}
		taken, err := r.Queue.Take(ctx, room)
		for range room - len(taken) {
			<-r.places
		}
		if err != nil && ctx.Err() == nil {
			subscriptions.Read(ctx, err)
			if failures == 0 { // in an outage, each topic of the process fails all the time
				r.Logger.Error("Cannot read a topic, trying again", err, r.fields())
			}
			sleep(ctx, pause(failures))
			failures++
		} else if err == nil {
			failures = 0
		}
		r.keep(ctx, taken)
		for i, one := range taken {
			select {
			case out <- one.Message:
				go r.await(one)
				continue
			case <-ctx.Done():
			}
			for _, rest := range taken[i:] {
				r.settled(rest, false)
			}
			break
		}
	}
}

// room waits for a place, and takes all that are free. It returns 0 where the context has ended.
func (r *Reader) room(ctx context.Context) (n int) {
	select {
	case r.places <- struct{}{}:
		n = 1
	case <-ctx.Done():
		return 0
	}
	for {
		select {
		case r.places <- struct{}{}:
			n++
			continue
		default:
		}
		if ctx.Err() == nil {
			return n
		}
		for range n { // select takes either where both are ready
			<-r.places
		}
		return 0
	}
}

// keep adds messages to those in flight. Their contexts do not end with the subscription.
func (r *Reader) keep(ctx context.Context, taken []*Taken) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range taken {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one.Message.SetContext(own)
		one.lease = time.Now().Add(r.Lease)
		r.inFlight[one] = cancel
	}
}

// await waits until a handler has settled a message.
func (r *Reader) await(one *Taken) {
	select {
	case <-one.Message.Acked():
		r.settled(one, true)
	case <-one.Message.Nacked():
		r.settled(one, false)
	case <-r.closed.Done():
		select {
		case <-one.Message.Acked():
			r.settled(one, true)
		default:
			r.settled(one, false)
		}
	}
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
			again.Reset(pause(failures))
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
			<-r.places
		}
	}
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

// renew renews the leases of the messages that handlers have. Where one is lost, the message may be with another reader,
// so its context ends. A settled one is not renewed: a server that never confirms that must not keep its place.
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

// pause doubles with every failure in a row. It is random, so that the readers of many processes do not come together.
func pause(failures int) time.Duration {
	longest := min(minPause<<min(failures, 10), maxPause)
	return longest/2 + rand.N(longest/2)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// String returns the name of the topic.
func (r *Reader) String() string { return fmt.Sprintf("reader of %s", r.Name) }
