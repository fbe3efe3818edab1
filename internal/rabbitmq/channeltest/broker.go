package channeltest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A Broker is the other end of a real connection. It opens channels and consumers. Its test decides what happens to
// each message, and whether a channel.close is answered.
type Broker struct {
	Address   string
	Published chan Message
	Closes    chan uint16 // channels that the client closes, unless Closing
	Opens     chan uint16 // channels that the client opens while Slow
	Slow      atomic.Bool // the test opens channels
	Closing   atomic.Bool // channels that the client closes are closed
	Deaf      atomic.Bool // nothing more is read

	mu   sync.Mutex
	conn net.Conn
	tags map[uint16]uint64
}

// A Message is one that the client has published.
type Message struct {
	Channel  uint16
	Tag      uint64 // the tag of its confirm
	Consumer string // the tag of the last consumer of the connection
	Header   []byte // the content header
	Body     string
}

// Serve waits for a connection.
func Serve(t testing.TB) *Broker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	b := &Broker{Address: listener.Addr().String(), Published: make(chan Message, 1000),
		Closes: make(chan uint16, 100), Opens: make(chan uint16, 100), tags: map[uint16]uint64{}}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			t.Cleanup(b.Cut)
			b.mu.Lock()
			b.conn = conn
			b.mu.Unlock()
			b.play(bufio.NewReader(conn))
			if !b.Deaf.Load() {
				b.Cut()
			}
		}
	}()
	return b
}

func (b *Broker) play(reader *bufio.Reader) {
	if _, err := reader.Discard(len("AMQP0091")); err != nil {
		return
	}
	start := append([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 5}, "PLAIN"...)
	b.Method(0, 10, 10, append(append(start, 0, 0, 0, 5), "en_US"...))
	var m Message
	for {
		var head [7]byte
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
		if _, err := io.ReadFull(reader, payload); err != nil || b.Deaf.Load() {
			return
		}
		channel, payload := binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1]
		switch head[0] {
		case 1:
			b.method(channel, payload, &m)
		case 2:
			m.Header = payload
		case 3:
			b.tags[channel]++
			m.Channel, m.Tag, m.Body = channel, b.tags[channel], string(payload)
			b.Published <- m
		}
	}
}

// method answers a method of the client.
func (b *Broker) method(channel uint16, payload []byte, m *Message) {
	switch [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])} {
	case [2]uint16{10, 11}: // start-ok: tune
		b.Method(0, 10, 30, []byte{0, 0, 0, 1, 0, 0, 0, 0})
	case [2]uint16{10, 40}: // open: open-ok
		b.Method(0, 10, 41, []byte{0})
	case [2]uint16{10, 50}: // close: close-ok
		b.Method(0, 10, 51, nil)
	case [2]uint16{20, 10}:
		if b.Slow.Load() {
			b.Opens <- channel
			return
		}
		b.OpenOK(channel)
	case [2]uint16{20, 40}:
		if b.Closing.Load() {
			b.CloseOK(channel)
			return
		}
		b.Closes <- channel
	case [2]uint16{60, 20}: // consume: consume-ok
		tag := payload[7+payload[6]:]
		tag = tag[:1+tag[0]]
		m.Consumer = string(tag[1:])
		b.Method(channel, 60, 21, tag)
	case [2]uint16{85, 10}: // confirm.select: select-ok
		b.Method(channel, 85, 11, nil)
	}
}

// Cut ends the connection.
func (b *Broker) Cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.conn.Close()
}

// Frame sends a frame, and reports whether the connection has taken it.
func (b *Broker) Frame(kind byte, channel uint16, payload []byte) bool {
	frame := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.conn.Write(append(append(frame, payload...), 0xCE))
	return err == nil
}

// Method sends a method.
func (b *Broker) Method(channel, class, id uint16, arguments []byte) {
	payload := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, class), id)
	b.Frame(1, channel, append(payload, arguments...))
}

// Short is a text of at most 255 bytes, as it is in arguments.
func Short(s string) []byte { return append([]byte{byte(len(s))}, s...) }

// Alarm raises an alarm.
func (b *Broker) Alarm() { b.Method(0, 10, 60, Short("low on memory")) }

// EndAlarm ends the alarm.
func (b *Broker) EndAlarm() { b.Method(0, 10, 61, nil) }

// OpenOK opens a channel.
func (b *Broker) OpenOK(channel uint16) { b.Method(channel, 20, 11, []byte{0, 0, 0, 0}) }

// CloseOK answers the close of a channel.
func (b *Broker) CloseOK(channel uint16) { b.Method(channel, 20, 41, nil) }

// CloseChannel closes a channel as RabbitMQ does for a message that it refuses.
func (b *Broker) CloseChannel(channel uint16) {
	b.Method(channel, 20, 40, append(binary.BigEndian.AppendUint16(nil, amqp091.PreconditionFailed), 0, 0, 0, 0, 0))
}

// Ack confirms a message.
func (b *Broker) Ack(m Message) {
	b.Method(m.Channel, 60, 80, append(binary.BigEndian.AppendUint64(nil, m.Tag), 0))
}

// Return returns a message as unroutable, and then confirms it.
func (b *Broker) Return(m Message) {
	arguments := append(binary.BigEndian.AppendUint16(nil, amqp091.NoRoute), 0, 0, 0) // text, exchange, routing key
	b.Method(m.Channel, 60, 50, arguments)
	b.Frame(2, m.Channel, m.Header)
	b.Frame(3, m.Channel, []byte(m.Body))
	b.Ack(m)
}
