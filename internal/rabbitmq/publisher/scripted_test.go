package publisher

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// serve implements enough of a broker to open a connection and a channel. It sends the length of every content header
// frame to headers.
func serve(t *testing.T) (address string, headers <-chan int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	lengths := make(chan int, 100)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		play(conn, lengths)
	}()
	return listener.Addr().String(), lengths
}

func play(conn net.Conn, headers chan<- int) {
	reader := bufio.NewReader(conn)
	if _, err := reader.Discard(len("AMQP0091")); err != nil {
		return
	}
	// connection.start: version 0-9, no properties, mechanisms, locales
	start := append([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 5}, "PLAIN"...)
	start = append(append(start, 0, 0, 0, 5), "en_US"...)
	method(conn, 0, 10, 10, start)
	for {
		kind, channel, payload, err := frame(reader)
		if err != nil {
			return
		}
		switch {
		case kind == 2:
			headers <- len(payload) + frameOverhead
		case kind != 1:
		case is(payload, 10, 11): // start-ok: tune
			method(conn, 0, 10, 30, []byte{0, 0, 0, 1, 0, 0, 0, 0})
		case is(payload, 10, 40): // open: open-ok
			method(conn, 0, 10, 41, []byte{0})
		case is(payload, 20, 10): // channel.open: open-ok
			method(conn, channel, 20, 11, []byte{0, 0, 0, 0})
		case is(payload, 10, 50): // close: close-ok
			method(conn, 0, 10, 51, nil)
		}
	}
}

func is(payload []byte, class, id uint16) bool {
	return binary.BigEndian.Uint16(payload) == class && binary.BigEndian.Uint16(payload[2:]) == id
}

func method(w io.Writer, channel, class, id uint16, arguments []byte) {
	frame := binary.BigEndian.AppendUint16([]byte{1}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(arguments)))
	frame = binary.BigEndian.AppendUint16(frame, class)
	frame = binary.BigEndian.AppendUint16(frame, id)
	_, _ = w.Write(append(append(frame, arguments...), 0xCE))
}

func frame(r io.Reader) (kind byte, channel uint16, payload []byte, err error) {
	var head [7]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	_, err = io.ReadFull(r, payload)
	return head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1], err
}
