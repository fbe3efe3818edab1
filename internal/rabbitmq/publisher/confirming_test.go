package publisher

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const soon = 60 * time.Second

// A confirming broker opens channels. The test decides what happens to each message, and whether a channel.close is
// answered.
type confirming struct {
	t         *testing.T
	address   string
	published chan delivered
	closes    chan uint16 // channels that the client closes
	opens     chan uint16 // channels that the client opens while slow
	slow      atomic.Bool // channels are opened by the test

	mu   sync.Mutex
	conn net.Conn
	tags map[uint16]uint64
}

type delivered struct {
	channel uint16
	tag     uint64
	header  []byte
	body    string
}

func serveConfirms(t *testing.T) *confirming {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	b := &confirming{t: t, address: listener.Addr().String(), tags: map[uint16]uint64{}}
	b.published, b.closes, b.opens = make(chan delivered, 1000), make(chan uint16, 100), make(chan uint16, 100)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			defer conn.Close()
			b.conn = conn
			b.play(bufio.NewReader(conn))
		}
	}()
	return b
}

func (b *confirming) play(reader *bufio.Reader) {
	if _, err := reader.Discard(len("AMQP0091")); err != nil {
		return
	}
	start := append([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 5}, "PLAIN"...)
	b.method(0, 10, 10, append(append(start, 0, 0, 0, 5), "en_US"...))
	var header []byte
	for {
		kind, channel, payload, err := frame(reader)
		switch {
		case err != nil:
			return
		case kind == 2:
			header = payload
		case kind == 3:
			b.mu.Lock()
			b.tags[channel]++
			message := delivered{channel: channel, tag: b.tags[channel], header: header, body: string(payload)}
			b.mu.Unlock()
			b.published <- message
		case kind != 1:
		case is(payload, 10, 11): // start-ok: tune
			b.method(0, 10, 30, []byte{0, 0, 0, 1, 0, 0, 0, 0})
		case is(payload, 10, 40): // open: open-ok
			b.method(0, 10, 41, []byte{0})
		case is(payload, 10, 50): // close: close-ok
			b.method(0, 10, 51, nil)
		case is(payload, 20, 10) && b.slow.Load():
			b.opens <- channel
		case is(payload, 20, 10):
			b.openOK(channel)
		case is(payload, 20, 40):
			b.closes <- channel
		case is(payload, 85, 10): // confirm.select: select-ok
			b.method(channel, 85, 11, nil)
		}
	}
}

func (b *confirming) method(channel, class, id uint16, arguments []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	method(b.conn, channel, class, id, arguments)
}

func (b *confirming) openOK(channel uint16) { b.method(channel, 20, 11, []byte{0, 0, 0, 0}) }

func (b *confirming) closeOK(channel uint16) { b.method(channel, 20, 41, nil) }

func (b *confirming) ack(m delivered) {
	b.method(m.channel, 60, 80, append(binary.BigEndian.AppendUint64(nil, m.tag), 0))
}

// returnUnroutable returns the message as unroutable, and then confirms it.
func (b *confirming) returnUnroutable(m delivered) {
	arguments := append(binary.BigEndian.AppendUint16(nil, amqp091.NoRoute), 0, 0, 0) // text, exchange, routing key
	b.method(m.channel, 60, 50, arguments)
	b.content(2, m.channel, m.header)
	b.content(3, m.channel, []byte(m.body))
	b.ack(m)
}

func (b *confirming) content(kind byte, channel uint16, payload []byte) {
	frame := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = b.conn.Write(append(append(frame, payload...), 0xCE))
}

// closeChannel closes the channel as RabbitMQ does for a message that it refuses.
func (b *confirming) closeChannel(channel uint16) {
	b.method(channel, 20, 40, append(binary.BigEndian.AppendUint16(nil, amqp091.PreconditionFailed), 0, 0, 0, 0, 0))
}

func (b *confirming) next() delivered {
	b.t.Helper()
	return receiveFrom(b.t, b.published)
}

func receiveFrom[T any](t *testing.T, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(soon):
		require.FailNow(t, "the client did not send what the test expects")
	}
	return value
}

func (b *confirming) nothing() {
	b.t.Helper()
	select {
	case m := <-b.published:
		require.FailNow(b.t, "a message was published", m.body)
	case <-time.After(200 * time.Millisecond):
	}
}

func (b *confirming) open(maxInFlight int) *Connection {
	b.t.Helper()
	c, err := Open(Config{Wire: wire.Config{URI: "amqp://user:password@" + b.address}, MaxInFlight: maxInFlight}, nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, c.Close()) })
	return c
}

// send sends in the background; within is how long the caller waits.
func send(t *testing.T, c *Connection, body string, within time.Duration) <-chan error {
	result := make(chan error, 1)
	go func() { result <- c.SendOne(timed(t, body, within)) }()
	return result
}

func timed(t *testing.T, body string, within time.Duration) Message {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return messageOf(ctx, body)
}

func messageOf(ctx context.Context, body string) Message {
	return Message{Context: ctx, RoutingKey: "queue", UUID: body, Publishing: amqp091.Publishing{Body: []byte(body)}}
}

func outcome(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(soon):
		require.FailNow(t, "Send does not return")
		return nil
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
