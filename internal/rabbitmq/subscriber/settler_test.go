package subscriber

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fakeChannel keeps the account of a broker: which deliveries are outstanding, and how each was settled.
type fakeChannel struct {
	mu      sync.Mutex
	next    uint64 // the lowest tag that was not delivered
	settled map[uint64]string
	frames  []string
	corked  bool
	writes  int
	takes   time.Duration // for each ack
}

func newFakeChannel(delivered uint64) *fakeChannel {
	return &fakeChannel{next: delivered + 1, settled: map[uint64]string{}}
}

func (c *fakeChannel) Cork()   { c.corked = true }
func (c *fakeChannel) Uncork() { c.corked = false; c.writes++ }

func (c *fakeChannel) Ack(tag uint64, multiple bool) error {
	time.Sleep(c.takes)
	c.settle("ack", tag, multiple)
	return nil
}

func (c *fakeChannel) Nack(tag uint64, multiple, requeue bool) error {
	if !requeue {
		panic("not requeued: lost")
	}
	c.settle("nack", tag, multiple)
	return nil
}

func (c *fakeChannel) settle(how string, tag uint64, multiple bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked {
		panic("a write of its own")
	}
	first, frame := tag, how
	if multiple {
		first, frame = 1, how+"s"
	}
	c.frames = append(c.frames, fmt.Sprint(frame, " ", tag))
	count := 0
	for i := first; i <= tag; i++ {
		if c.settled[i] == "" {
			c.settled[i] = how
			count++
		}
	}
	if tag >= c.next || count == 0 {
		panic(fmt.Sprintf("406 unknown delivery tag %d", tag)) // the broker closes the channel
	}
}

func TestAcksLeaveTogether(t *testing.T) {
	t.Parallel()
	c := newFakeChannel(20)
	s := newSettler(c, c, make(chan struct{}))
	for _, step := range []struct {
		acks, nacks []uint64
		frames      []string
	}{
		{[]uint64{1}, nil, []string{"ack 1"}},
		{[]uint64{4, 2, 3}, nil, []string{"acks 4"}},
		{[]uint64{7, 6}, nil, []string{"ack 6", "ack 7"}}, // 5 is outstanding
		{[]uint64{9}, []uint64{10}, []string{"ack 9", "nack 10"}},
		{[]uint64{5}, nil, []string{"ack 5"}},
		{[]uint64{12, 8, 11}, nil, []string{"acks 12"}}, // 9 and 10 are settled already
		{nil, []uint64{13}, []string{"nack 13"}},
		{[]uint64{14, 15}, nil, []string{"acks 15"}},
	} {
		c.frames = nil
		s.send(step.acks, step.nacks)
		assert.Equal(t, step.frames, c.frames)
	}
	assert.Equal(t, tags{low: 16, spans: []span{}}, s.sent)
	assert.Equal(t, 8, c.writes, "one for each step")
}

// Whatever the order, each delivery is settled once, as its handler has settled it.
func TestEachDeliveryIsSettledAsItsHandlerDid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		const deliveries, prefetch = 500, 32
		random := rand.New(rand.NewPCG(seed, 1))
		c := newFakeChannel(deliveries)
		s := newSettler(c, c, make(chan struct{}))
		want := map[uint64]string{}
		outstanding := []uint64{}
		next := uint64(1)
		for len(want) < deliveries {
			for len(outstanding) < prefetch && next <= deliveries {
				outstanding = append(outstanding, next)
				next++
			}
			var acks, nacks []uint64
			for range 1 + random.IntN(len(outstanding)) {
				at := random.IntN(len(outstanding))
				if random.IntN(2) == 0 {
					at = random.IntN(min(3, len(outstanding))) // most handlers take equally long
				}
				tag := outstanding[at]
				outstanding = slices.Delete(outstanding, at, at+1)
				if random.IntN(8) == 0 {
					nacks, want[tag] = append(nacks, tag), "nack"
				} else {
					acks, want[tag] = append(acks, tag), "ack"
				}
			}
			s.send(acks, nacks)
			for tag, how := range c.settled {
				require.Equal(t, want[tag], how, "seed %d: tag %d was settled before its handler", seed, tag)
			}
			require.LessOrEqual(t, len(s.sent.spans), prefetch+1)
		}
		require.Len(t, c.settled, deliveries)
		require.Equal(t, uint64(deliveries+1), s.sent.low)
	}
}

func TestNacksWaitForTheEndOfTheConsumer(t *testing.T) {
	t.Parallel()
	c, stopping := newFakeChannel(10), make(chan struct{})
	s := newSettler(c, c, stopping)
	go s.run()
	s.nack(1)
	close(stopping)
	s.nack(4)
	require.True(t, s.ack(3))
	s.nack(2) // its handler returns after that of a later message
	s.consumerEnded()
	s.nack(5)
	s.flush()
	nacks := slices.DeleteFunc(slices.Clone(c.frames), func(frame string) bool { return frame == "ack 3" })
	assert.Equal(t, []string{"nack 1", "nack 2", "nack 4", "nack 5"}, nacks, "in the order of the deliveries")
	assert.Equal(t, map[uint64]string{1: "nack", 2: "nack", 3: "ack", 4: "nack", 5: "nack"}, c.settled)
	assert.False(t, s.ack(6), "after the flush")
	s.nack(7)
	s.end()
	s.end()
	s.flush()
	assert.Len(t, c.settled, 5)
}

func TestNacksAreHeldBackUntilTheConsumerHasEnded(t *testing.T) {
	t.Parallel()
	c, stopping := newFakeChannel(10), make(chan struct{})
	close(stopping)
	s := newSettler(c, c, stopping)
	go s.run()
	s.nack(1)
	s.ack(2)
	s.flush() // without consumerEnded
	assert.Equal(t, map[uint64]string{2: "ack"}, c.settled)
}

// An acker acks further deliveries while the first ack is sent.
type acker struct {
	*fakeChannel
	once    sync.Once
	further func()
}

func (c *acker) Ack(tag uint64, multiple bool) error {
	err := c.fakeChannel.Ack(tag, multiple)
	if tag == 4 {
		c.once.Do(c.further)
	}
	return err
}

func TestAcksAreNotWrittenOverWhileTheyAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &acker{fakeChannel: newFakeChannel(20)}
		c.takes = time.Second
		s := newSettler(c, c, make(chan struct{}))
		c.further = func() { s.ack(8); s.ack(10) }
		go s.run()
		s.ack(1)
		s.ack(2)
		time.Sleep(time.Minute)
		s.nack(12) // without an ack
		synctest.Wait()
		s.ack(3)
		synctest.Wait()
		s.ack(4) // while the one before is sent
		s.ack(6)
		time.Sleep(time.Minute)
		s.flush()
		s.end()
		assert.Equal(t, map[uint64]string{1: "ack", 2: "ack", 3: "ack", 4: "ack", 6: "ack", 8: "ack", 10: "ack",
			12: "nack"}, c.settled)
	})
}

func TestALostChannelTakesNothing(t *testing.T) {
	t.Parallel()
	c := newFakeChannel(10)
	s := newSettler(c, c, make(chan struct{}))
	s.end()
	s.run()
	assert.False(t, s.ack(1))
	s.nack(2)
	s.flush()
	assert.Empty(t, c.settled)
}

func BenchmarkSettle(b *testing.B) {
	s := newSettler(nothing{}, nothing{}, make(chan struct{}))
	go s.run()
	b.ReportAllocs()
	var tag uint64
	for b.Loop() {
		tag++
		s.ack(tag)
	}
	s.flush()
}

type nothing struct{}

func (nothing) Ack(uint64, bool) error        { return nil }
func (nothing) Nack(uint64, bool, bool) error { return nil }
func (nothing) Cork()                         {}
func (nothing) Uncork()                       {}
