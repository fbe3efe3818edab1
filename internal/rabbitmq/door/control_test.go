package door

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/command"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/tasks"
)

// askedBroker is a broker that opens channels, takes one question, and then does what the test says: the model of RabbitMQ
// has no direct replies.
func askedBroker(t *testing.T, asked func(conn net.Conn, channel uint16, tag, correlation string) (goOn bool)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = conn.Close() })
		r := bufio.NewReader(conn)
		_, _ = r.Discard(8)
		put(conn, 0, 10, 10, append(append(append([]byte{0, 9, 0, 0, 0, 0, 0, 0, 0, 5}, "PLAIN"...), 0, 0, 0, 5), "en_US"...))
		var tag string
		var header []byte
		for {
			var head [7]byte
			if _, err = io.ReadFull(r, head[:]); err != nil {
				return
			}
			payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
			if _, err = io.ReadFull(r, payload); err != nil {
				return
			}
			channel := binary.BigEndian.Uint16(head[1:])
			is := func(class, id uint16) bool {
				return head[0] == 1 && binary.BigEndian.Uint16(payload) == class && binary.BigEndian.Uint16(payload[2:]) == id
			}
			switch {
			case head[0] == 2:
				header = payload
			case head[0] == 3:
				at := 14
				at += 1 + int(header[at]) // content type
				correlation := string(header[at+1 : at+1+int(header[at])])
				if !asked(conn, channel, tag, correlation) {
					return // it reads no more
				}
			case is(10, 11):
				put(conn, 0, 10, 30, []byte{0, 0, 0, 1, 0, 0, 0, 0})
			case is(10, 40):
				put(conn, 0, 10, 41, []byte{0})
			case is(10, 50):
				put(conn, 0, 10, 51, nil)
			case is(20, 10):
				put(conn, channel, 20, 11, []byte{0, 0, 0, 0})
			case is(20, 40):
				put(conn, channel, 20, 41, nil)
			case is(85, 10):
				put(conn, channel, 85, 11, nil)
			case is(60, 20):
				at := 6 + 1 + int(payload[6])
				tag = string(payload[at+1 : at+1+int(payload[at])])
				put(conn, channel, 60, 21, payload[at:at+1+int(payload[at])])
			}
		}
	}()
	return listener.Addr().String()
}

func put(w io.Writer, channel, class, id uint16, arguments []byte) {
	frame := binary.BigEndian.AppendUint16([]byte{1}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(4+len(arguments)))
	frame = binary.BigEndian.AppendUint16(frame, class)
	frame = binary.BigEndian.AppendUint16(frame, id)
	_, _ = w.Write(append(append(frame, arguments...), 0xCE))
}

func content(w io.Writer, kind byte, channel uint16, payload []byte) {
	frame := binary.BigEndian.AppendUint16([]byte{kind}, channel)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	_, _ = w.Write(append(append(frame, payload...), 0xCE))
}

func short(s string) []byte { return append([]byte{byte(len(s))}, s...) }

func deliver(w io.Writer, channel uint16, tag, correlation string, a command.Answer) {
	body, _ := json.Marshal(a)
	arguments := binary.BigEndian.AppendUint64(short(tag), 1)
	arguments = append(arguments, 0, 0, 0)
	put(w, channel, 60, 60, arguments)
	header := binary.BigEndian.AppendUint64([]byte{0, 60, 0, 0}, uint64(len(body)))
	header = append(append(header, 0x04, 0), short(correlation)...)
	content(w, 2, channel, header)
	content(w, 3, channel, body)
}

func controlOf(t *testing.T, address string) *control {
	connection, err := publisher.Open(publisher.Config{Wire: wire.Config{URI: "amqp://user:password@" + address}}, nil)
	require.NoError(t, err)
	return &control{exchange: "retry.order", publishing: connection, logger: watermill.NopLogger{},
		Tasks: tasks.New(context.Background())}
}

// Under an alarm the broker reads nothing more from a connection that has published. The handler consumes all the same:
// that is what empties the broker.
func TestAHandlerWithAKeyBeginsUnderAnAlarm(t *testing.T) {
	address := askedBroker(t, func(conn net.Conn, _ uint16, _, _ string) bool {
		put(conn, 0, 10, 60, short("low on memory"))
		go func() { // a broker sends heartbeats also while it reads nothing
			for ; ; time.Sleep(time.Second) {
				if _, err := conn.Write([]byte{8, 0, 0, 0, 0, 0, 0, 0xCE}); err != nil {
					return
				}
			}
		}()
		return false
	})
	c := controlOf(t, address)
	begun := make(chan struct{})
	go func() { c.addKeyed(keyed{"deliver", "webhooks", gate.New(16)}); close(begun) }()
	select {
	case <-begun:
	case <-time.After(time.Minute):
		assert.Fail(t, "addKeyed does not return, and the handler does not consume")
	}
}

// The first answer may come from another app of the broker, from a process that has begun at the same moment, or from
// this process itself: it knows no limit.
func TestLimitsAreThoseOfAnyAnswer(t *testing.T) {
	address := askedBroker(t, func(conn net.Conn, channel uint16, tag, correlation string) bool {
		deliver(conn, channel, tag, correlation, command.Answer{Host: "invoices"})
		deliver(conn, channel, tag, correlation, command.Answer{Host: "webhooks", Told: []command.Request{
			{Queue: "webhooks", Do: command.Limit, Key: "7", Lasts: time.Hour},
		}})
		return true
	})
	c := controlOf(t, address)
	g := gate.New(16)
	c.addKeyed(keyed{"deliver", "webhooks", g})
	assert.Len(t, g.Keys(), 1)
}
