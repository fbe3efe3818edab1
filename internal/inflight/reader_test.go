package inflight_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/inflight"
)

const lease = 15 * time.Second

var errDown = errors.New("the server is down")

// topic is a Queue in virtual time. The files of the backends are tested on servers.
type topic struct {
	mu    sync.Mutex
	due   map[string]time.Time // by the ID of a message: when it may be taken
	taken map[string]int       // how often
	fail  map[string]error     // by the name of a method
	slow  time.Duration        // of an ack, whose context it ignores
	calls map[string]int
	batch int // the largest

	messages int // at the start
}

func newTopic(messages int) *topic {
	q := &topic{
		due: map[string]time.Time{}, taken: map[string]int{}, fail: map[string]error{}, calls: map[string]int{},
		messages: messages,
	}
	for i := range messages {
		q.due[fmt.Sprintf("%03d", i)] = time.Now()
	}
	return q
}

// enter locks the topic and returns the error of a method.
func (q *topic) enter(method string) error {
	q.mu.Lock()
	q.calls[method]++
	return q.fail[method]
}

func (q *topic) broken(method string, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fail[method] = err
}

func (q *topic) Take(ctx context.Context, n int) ([]*inflight.Taken, error) {
	for {
		found, err := q.take(n)
		if err != nil || len(found) > 0 {
			return found, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (q *topic) take(n int) (found []*inflight.Taken, err error) {
	err = q.enter("take")
	defer q.mu.Unlock()
	for i := 0; err == nil && i < q.messages && len(found) < n; i++ {
		id := fmt.Sprintf("%03d", i)
		if due, there := q.due[id]; there && !time.Now().Before(due) {
			q.due[id] = time.Now().Add(lease)
			q.taken[id]++
			found = append(found, &inflight.Taken{ID: id, Message: message.NewMessage(id, nil), Handle: q.taken[id]})
		}
	}
	return found, err
}

func (q *topic) Ack(_ context.Context, taken []*inflight.Taken) error {
	time.Sleep(q.slow)
	return q.each("ack", taken, func(one *inflight.Taken) { delete(q.due, one.ID) })
}

func (q *topic) Renew(_ context.Context, taken []*inflight.Taken) (lost []*inflight.Taken, err error) {
	err = q.each("renew", taken, func(one *inflight.Taken) {
		if q.taken[one.ID] == one.Handle {
			q.due[one.ID] = time.Now().Add(lease)
		} else {
			lost = append(lost, one)
		}
	})
	return lost, err
}

func (q *topic) GiveBack(_ context.Context, taken []*inflight.Taken) error {
	return q.each("give back", taken, func(one *inflight.Taken) { q.due[one.ID] = time.Now() })
}

func (q *topic) each(method string, taken []*inflight.Taken, do func(*inflight.Taken)) error {
	err := q.enter(method)
	defer q.mu.Unlock()
	q.batch = max(q.batch, len(taken))
	for _, one := range taken {
		if _, there := q.due[one.ID]; there && err == nil {
			do(one)
		}
	}
	return err
}

func (q *topic) left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.due)
}

// free counts the messages that another reader could take now.
func (q *topic) free() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, due := range q.due {
		if !time.Now().Before(due) {
			n++
		}
	}
	return n
}

// reading is what a test of a reader needs.
type reading struct {
	*topic
	reader *inflight.Reader
	out    <-chan *message.Message
	end    context.CancelFunc // of the subscription
}

// read runs a test in virtual time, with a reader of a topic, and closes the reader.
func read(t *testing.T, messages, concurrency int, test func(t *testing.T, q *reading), before ...func(*topic)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := &reading{topic: newTopic(messages)}
		for _, change := range before {
			change(q.topic)
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		q.end = end
		q.reader = inflight.NewReader(inflight.Config{Queue: q.topic, Name: "orders", Concurrency: concurrency, Lease: lease})
		q.out = q.reader.Subscribe(ctx)
		test(t, q)
		require.NoError(t, q.reader.Close())
	})
}

// failing makes a method of the topic fail.
func failing(method string) func(*topic) { return func(q *topic) { q.broken(method, errDown) } }

// Several messages are in flight, and those that are settled together are acknowledged together.
func TestMessagesInFlight(t *testing.T) {
	read(t, 100, 8, func(t *testing.T, q *reading) {
		var got []*message.Message
		for range 16 { // 8 more are taken ahead
			got = append(got, <-q.out)
		}
		select {
		case <-q.out:
			require.Fail(t, "more than twice the concurrency")
		case <-time.After(lease * 10):
		}
		for _, msg := range got {
			msg.Ack()
		}
		for range 84 {
			(<-q.out).Ack()
		}
		synctest.Wait()
		assert.Zero(t, q.left())
		for id, n := range q.taken {
			assert.Equal(t, 1, n, "%s was in flight for ten leases and was delivered once", id)
		}
		assert.Greater(t, q.batch, 1)
		require.NoError(t, q.reader.Close())
		_, open := <-q.out
		assert.False(t, open)
	})
}

// Where calls are short, more messages are taken ahead, with few takes. Long calls leave them to other processes.
func TestShortCallsTakeFurtherAhead(t *testing.T) {
	read(t, 1000, 8, func(t *testing.T, q *reading) {
		handle := func(each int, call time.Duration) (inFlight int) {
			var calls sync.WaitGroup
			for range 8 {
				calls.Go(func() {
					for range each {
						msg := <-q.out
						time.Sleep(call)
						msg.Ack()
					}
				})
			}
			calls.Wait()
			synctest.Wait()
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.taken) - (q.messages - len(q.due))
		}
		assert.Greater(t, handle(50, time.Millisecond), 32)
		assert.Less(t, q.calls["take"], 25)
		assert.LessOrEqual(t, handle(50, time.Second), 16)
		require.NoError(t, q.reader.Close())
		assert.Equal(t, 200, q.free())
	})
}

// With a concurrency of 1, the next message is taken after the ack of the one before.
func TestOneMessageInFlight(t *testing.T) {
	read(t, 3, 1, func(t *testing.T, q *reading) {
		first := <-q.out
		synctest.Wait()
		assert.Len(t, q.taken, 1)
		first.Nack()
		again := <-q.out
		assert.Equal(t, first.UUID, again.UUID, "a nack gives the message back")
		again.Ack()
		assert.Equal(t, "001", (<-q.out).UUID)
		require.NoError(t, q.reader.Close())
		assert.Equal(t, 2, q.free(), "what was not settled")
	})
}

// The end of the subscription gives back what was not delivered, and lets a message in flight be settled.
func TestEndOfASubscription(t *testing.T) {
	read(t, 10, 4, func(t *testing.T, q *reading) {
		msg := <-q.out
		q.end()
		synctest.Wait()
		_, open := <-q.out
		assert.False(t, open)
		assert.Equal(t, 9, q.free())
		time.Sleep(2 * lease)
		require.NoError(t, msg.Context().Err())
		assert.Equal(t, 9, q.free(), "its lease is renewed")
		msg.Ack()
		synctest.Wait()
		assert.Equal(t, 9, q.left())
		require.ErrorIs(t, msg.Context().Err(), context.Canceled)
	})
}

// Close ends the contexts of messages in flight, and gives them back.
func TestClose(t *testing.T) {
	read(t, 2, 2, func(t *testing.T, q *reading) {
		acked, running := <-q.out, <-q.out
		acked.Ack()
		require.NoError(t, q.reader.Close())
		require.Error(t, running.Context().Err())
		assert.Equal(t, 1, q.left(), "the ack before Close counts")
		assert.Equal(t, 1, q.free())
	})
}

// A server that does not answer is asked again. A message whose lease ends meanwhile may be with another reader.
func TestServerThatDoesNotAnswer(t *testing.T) {
	for _, row := range []struct {
		method string
		down   time.Duration
		taken  int // how often one message is delivered
	}{
		{"take", time.Minute, 1}, {"ack", lease / 2, 1}, {"ack", 2 * lease, 3}, {"renew", lease / 2, 1},
		{"give back", lease / 2, 2},
	} {
		t.Run(fmt.Sprint(row.method, row.down), func(t *testing.T) {
			read(t, 1, 2, func(t *testing.T, q *reading) {
				time.AfterFunc(row.down, func() { q.broken(row.method, nil) })
				msg := <-q.out
				switch row.method {
				case "renew":
					time.Sleep(row.down + lease)
					require.NoError(t, msg.Context().Err())
				case "give back":
					msg.Nack()
					msg = <-q.out
				}
				msg.Ack()
				for q.left() > 0 {
					select {
					case msg := <-q.out:
						msg.Ack()
					case <-time.After(time.Second):
					}
				}
				require.NoError(t, q.reader.Close())
				assert.Equal(t, row.taken, q.taken["000"])
				assert.Less(t, q.calls[row.method], 100, "no hot loop")
			}, failing(row.method))
		})
	}
}

// An outage has one line in the log for each topic, and so has the next one.
func TestLogOfATopicThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := watermill.NewCaptureLogger()
		q := newTopic(2)
		r := inflight.NewReader(inflight.Config{Queue: q, Name: "orders", Concurrency: 1, Lease: lease, Logger: logs})
		q.broken("take", errDown)
		out := r.Subscribe(t.Context())
		for outage := range 2 {
			time.Sleep(time.Minute)
			assert.Len(t, logs.Captured()[watermill.ErrorLogLevel], outage+1)
			q.broken("take", nil)
			msg := <-out
			q.broken("take", errDown)
			msg.Ack()
		}
		require.NoError(t, r.Close())
	})
}

// The context of a message ends when its lease is lost, and a nack then takes it from no other reader.
func TestLeaseThatIsLost(t *testing.T) {
	read(t, 1, 1, func(t *testing.T, q *reading) {
		msg := <-q.out
		<-msg.Context().Done()
		q.broken("renew", nil)
		_, err := q.take(1) // by another reader
		require.NoError(t, err)
		msg.Nack()
		synctest.Wait()
		assert.Zero(t, q.free())
		assert.Zero(t, q.calls["give back"])
	}, failing("renew"))
}

// A message whose lease is lost before its delivery is not delivered.
func TestLeaseThatIsLostAhead(t *testing.T) {
	read(t, 4, 2, func(t *testing.T, q *reading) {
		time.Sleep(2*lease - time.Second)
		q.broken("renew", nil)
		for range 4 {
			msg := <-q.out
			require.NoError(t, msg.Context().Err())
			msg.Ack()
		}
		require.NoError(t, q.reader.Close())
		assert.Zero(t, q.left())
		assert.Zero(t, q.calls["give back"])
	}, failing("renew"))
}

// The context of a message ends when the server tells that another reader has it.
func TestLeaseThatAnotherReaderHas(t *testing.T) {
	read(t, 2, 2, func(t *testing.T, q *reading) {
		msg, other := <-q.out, <-q.out
		q.mu.Lock()
		q.taken[msg.UUID]++
		q.due[msg.UUID] = time.Now().Add(time.Hour)
		q.mu.Unlock()
		time.Sleep(lease/3 + time.Millisecond)
		require.ErrorIs(t, msg.Context().Err(), context.Canceled)
		msg.Nack()
		time.Sleep(lease)
		synctest.Wait()
		assert.Zero(t, q.calls["give back"])
		require.NoError(t, other.Context().Err())
		other.Ack()
	})
}

// Leases are renewed while the server takes long for an ack.
func TestSlowAck(t *testing.T) {
	read(t, 2, 2, func(t *testing.T, q *reading) {
		msg, other := <-q.out, <-q.out
		msg.Ack()
		time.Sleep(2 * lease)
		require.NoError(t, other.Context().Err())
		q.mu.Lock()
		assert.True(t, q.due[other.UUID].After(time.Now()), "it is renewed")
		q.mu.Unlock()
		other.Ack()
		require.NoError(t, q.reader.Close())
		assert.Zero(t, q.left())
	}, func(q *topic) { q.slow = 3 * lease })
}

// A subscription that ends leaves nothing behind, and Close does nothing with it.
func TestReadersThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readers inflight.Readers
		left := 0
		leave := func() error { left++; return errDown }
		begin := func(ctx context.Context) {
			out, err := readers.Begin(ctx, inflight.Config{Queue: newTopic(1), Lease: lease}, leave)
			require.NoError(t, err)
			(<-out).Ack()
		}
		ctx, end := context.WithCancel(t.Context())
		begin(ctx)
		end()
		synctest.Wait()
		assert.Equal(t, 1, left)
		begin(t.Context())
		require.ErrorIs(t, readers.Close(), errDown)
		assert.Equal(t, 2, left)
		_, err := readers.Begin(t.Context(), inflight.Config{Queue: newTopic(1), Lease: lease}, leave)
		require.ErrorIs(t, err, inflight.ErrClosed)
	})
}
