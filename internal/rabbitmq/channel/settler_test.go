package channel

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
)

// A fakeSocket sees that all frames leave in a write of several.
type fakeSocket struct {
	*channeltest.Channel
	corked bool
	writes int
}

func newFakeSocket(deliveries uint64) *fakeSocket {
	return &fakeSocket{Channel: channeltest.New(deliveries)}
}

func (s *fakeSocket) Cork()   { s.corked = true }
func (s *fakeSocket) Uncork() { s.corked = false; s.writes++ }

func (s *fakeSocket) Ack(tag uint64, multiple bool) error {
	s.check()
	return s.Channel.Ack(tag, multiple)
}

func (s *fakeSocket) Nack(tag uint64, multiple, requeue bool) error {
	s.check()
	return s.Channel.Nack(tag, multiple, requeue)
}

func (s *fakeSocket) check() {
	if !s.corked {
		panic("a write of its own")
	}
}

func TestAcksLeaveTogether(t *testing.T) {
	t.Parallel()
	c := newFakeSocket(20)
	s := newSettler(c, c, context.Background())
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
		s.send(step.acks, step.nacks)
		assert.Equal(t, step.frames, c.Frames())
	}
	assert.Equal(t, tags{{0, 15}}, s.sent)
	assert.Equal(t, 8, c.writes, "one for each step")
}

// Whatever the order, each delivery is settled once, as its handler has settled it.
func TestEachDeliveryIsSettledAsItsHandlerDid(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		const deliveries, prefetch = 500, 32
		random := rand.New(rand.NewPCG(seed, 1))
		c := newFakeSocket(deliveries)
		s := newSettler(c, c, context.Background())
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
			for tag, how := range c.Settled() {
				require.Equal(t, want[tag], how, "seed %d: tag %d was settled before its handler", seed, tag)
			}
			require.LessOrEqual(t, len(s.sent), prefetch+1)
		}
		require.Len(t, c.Settled(), deliveries)
		require.Equal(t, uint64(deliveries+1), s.sent.low())
	}
}

func TestNacksWaitForTheEndOfTheConsumer(t *testing.T) {
	t.Parallel()
	c := newFakeSocket(10)
	stopping, stop := context.WithCancel(t.Context())
	s := newSettler(c, c, stopping)
	go s.run()
	s.Nack(1)
	stop()
	s.Nack(4)
	require.True(t, s.Ack(3))
	s.Nack(2) // its handler returns after that of a later message
	s.ConsumerEnded()
	s.Nack(5)
	s.Flush()
	nacks := slices.DeleteFunc(c.Frames(), func(frame string) bool { return frame == "ack 3" })
	assert.Equal(t, []string{"nack 1", "nack 2", "nack 4", "nack 5"}, nacks, "in the order of the deliveries")
	assert.Equal(t, map[uint64]string{1: "nack", 2: "nack", 3: "ack", 4: "nack", 5: "nack"}, c.Settled())
	assert.False(t, s.Ack(6), "after the flush")
	s.Nack(7)
	s.End(errClosed)
	s.End(errClosed)
	s.Flush()
	assert.Len(t, c.Settled(), 5)
}

func TestNacksAreHeldBackUntilTheConsumerHasEnded(t *testing.T) {
	t.Parallel()
	c := newFakeSocket(10)
	stopping, stop := context.WithCancel(t.Context())
	stop()
	s := newSettler(c, c, stopping)
	go s.run()
	s.Nack(1)
	s.Ack(2)
	s.Flush() // without ConsumerEnded
	assert.Equal(t, map[uint64]string{2: "ack"}, c.Settled())
}

// An acker acks further deliveries while the first ack is sent.
type acker struct {
	*fakeSocket
	once    sync.Once
	further func()
}

func (c *acker) Ack(tag uint64, multiple bool) error {
	err := c.fakeSocket.Ack(tag, multiple)
	if tag == 4 {
		c.once.Do(c.further)
	}
	return err
}

func TestAcksAreNotWrittenOverWhileTheyAreSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &acker{fakeSocket: newFakeSocket(20)}
		c.AckTakes = time.Second
		s := newSettler(c, c, context.Background())
		c.further = func() { s.Ack(8); s.Ack(10) }
		go s.run()
		s.Ack(1)
		s.Ack(2)
		time.Sleep(time.Minute)
		s.Nack(12) // without an ack
		synctest.Wait()
		s.Ack(3)
		synctest.Wait()
		s.Ack(4) // while the one before is sent
		s.Ack(6)
		time.Sleep(time.Minute)
		s.Flush()
		s.End(errClosed)
		assert.Equal(t, map[uint64]string{1: "ack", 2: "ack", 3: "ack", 4: "ack", 6: "ack", 8: "ack", 10: "ack",
			12: "nack"}, c.Settled())
	})
}

func TestALostChannelTakesNothing(t *testing.T) {
	t.Parallel()
	c := newFakeSocket(10)
	s := newSettler(c, c, context.Background())
	s.End(errClosed)
	s.run()
	assert.False(t, s.Ack(1))
	s.Nack(2)
	s.Flush()
	assert.Empty(t, c.Settled())
}
