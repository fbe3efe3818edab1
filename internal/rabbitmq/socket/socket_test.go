package socket

import (
	"bytes"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A counter counts the writes that reach the network.
type counter struct {
	net.Conn
	mu     sync.Mutex
	writes []int
}

func (c *counter) Write(data []byte) (int, error) {
	c.mu.Lock()
	c.writes = append(c.writes, len(data))
	c.mu.Unlock()
	return c.Conn.Write(data)
}

func connected(t *testing.T, timeout time.Duration) (*Socket, *counter, net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	server, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	counted := &counter{Conn: client}
	return New(counted, timeout), counted, server
}

func send(t *testing.T, s *Socket, data []byte) {
	t.Helper()
	n, err := s.Write(data)
	require.NoError(t, err)
	require.Equal(t, len(data), n)
}

func receive(t *testing.T, conn net.Conn, n int) []byte {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	data := make([]byte, n)
	_, err := io.ReadFull(conn, data)
	require.NoError(t, err)
	return data
}

func TestSocketWritesAtOnceUnlessCorked(t *testing.T) {
	t.Parallel()
	s, counted, peer := connected(t, time.Minute)
	send(t, s, []byte("a"))
	require.Equal(t, "a", string(receive(t, peer, 1)))
	s.Cork()
	for range 100 {
		send(t, s, []byte("bc"))
	}
	require.Equal(t, []int{1}, counted.writes)
	assert.False(t, s.Full())
	s.Uncork()
	require.Equal(t, bytes.Repeat([]byte("bc"), 100), receive(t, peer, 200))
	require.Equal(t, []int{1, 200}, counted.writes)
	send(t, s, []byte("d"))
	require.Equal(t, "d", string(receive(t, peer, 1)))
	s.Cork()
	s.Uncork()
	require.Equal(t, []int{1, 200, 1}, counted.writes, "nothing to write, nothing written")
}

func TestSocketKeepsTheOrderOfWhatIsTooLargeToHold(t *testing.T) {
	t.Parallel()
	s, counted, peer := connected(t, time.Minute)
	large := bytes.Repeat([]byte("L"), gather+1)
	half := bytes.Repeat([]byte("H"), gather/2+1)
	var received []byte
	var group sync.WaitGroup
	group.Go(func() { received = receive(t, peer, 1+len(large)+2*len(half)+1) })
	s.Cork()
	send(t, s, []byte("a"))
	send(t, s, large)
	send(t, s, half)
	assert.True(t, s.Full())
	send(t, s, half)
	send(t, s, []byte("z"))
	s.Uncork()
	group.Wait()
	want := append(append(append(append([]byte("a"), large...), half...), half...), 'z')
	require.True(t, bytes.Equal(want, received))
	require.Equal(t, []int{1, len(large), len(half), len(half) + 1}, counted.writes)
}

func TestSocketGivesUpOnAPeerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for name, corked := range map[string]bool{"corked": true, "not corked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, _ := connected(t, 200*time.Millisecond)
			if corked {
				s.Cork()
			}
			var err error
			for err == nil {
				_, err = s.Write(make([]byte, 1<<20))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			_, again := s.Write([]byte("x"))
			require.ErrorIs(t, again, os.ErrDeadlineExceeded, "it stays broken")
			_, err = s.Read(make([]byte, 1))
			require.ErrorIs(t, err, net.ErrClosed, "so that the reader notices")
		})
	}
}

func TestSocketHeedsAnEarlierDeadline(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Socket, time.Time) error{
		"SetDeadline": (*Socket).SetDeadline, "SetWriteDeadline": (*Socket).SetWriteDeadline,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, peer := connected(t, time.Hour) // the test would not end
			require.NoError(t, set(s, time.Now().Add(-time.Second)))
			require.NoError(t, set(s, time.Time{}))
			send(t, s, []byte("a"))
			receive(t, peer, 1)
			require.NoError(t, set(s, time.Now().Add(100*time.Millisecond)))
			var err error
			for err == nil {
				_, err = s.Write(make([]byte, 1<<20))
			}
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		})
	}
}

func TestSocketIsSharedBySeveralWriters(t *testing.T) {
	t.Parallel()
	s, counted, peer := connected(t, time.Minute)
	s.Cork()
	s.Cork()
	send(t, s, []byte("ab"))
	s.Uncork()
	require.Equal(t, "ab", string(receive(t, peer, 2)), "the first Uncork does not wait for the other writer")
	send(t, s, []byte("c"))
	send(t, s, []byte("d"))
	require.Equal(t, []int{2}, counted.writes, "the other writer's bytes are still held back")
	s.Uncork()
	require.Equal(t, "cd", string(receive(t, peer, 2)))
	require.Equal(t, []int{2, 2}, counted.writes)
}
