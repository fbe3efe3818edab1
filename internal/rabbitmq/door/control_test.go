package door

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"
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
// that is what empties the broker. Close waits for no answer, either, also where the process asks after a reconnect.
func TestAHandlerWithAKeyBeginsUnderAnAlarm(t *testing.T) {
	for name, ask := range map[string]func(*control){
		"it begins":       func(c *control) { c.addKeyed(keyed{"deliver", "webhooks", gate.New(16)}) },
		"it is connected": func(c *control) { c.Go(func() { c.tell(c.Context) }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alarm := make(chan struct{})
			c := controlOf(t, alarmed(t, alarm))
			for what, do := range []func(){
				func() { ask(c); <-alarm }, c.Close, func() { _ = c.publishing.Close() },
			} {
				done := make(chan struct{})
				go func() { do(); close(done) }()
				select {
				case <-done:
				case <-time.After(tellTimeout - 2*time.Second): // it does not wait until the process asks no more
					require.Fail(t, "it does not return", []string{"addKeyed", "Close", "Close of the connection"}[what])
				}
			}
			assert.Eventually(t, func() bool {
				stacks := make([]byte, 1<<20)
				return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "door.within")
			}, time.Minute, time.Millisecond, "it asks though the connection is closed")
		})
	}
}

// alarmed is a broker that reads nothing more after the first question, because of an alarm.
func alarmed(t *testing.T, alarm chan<- struct{}) string {
	return askedBroker(t, func(conn net.Conn, _ uint16, _, _ string) bool {
		put(conn, 0, 10, 60, short("low on memory"))
		go func() { // a broker sends heartbeats also while it reads nothing
			for ; ; time.Sleep(time.Second) {
				if _, err := conn.Write([]byte{8, 0, 0, 0, 0, 0, 0, 0xCE}); err != nil {
					return
				}
			}
		}()
		close(alarm)
		return false
	})
}

// All processes tell one another after a restart of the broker.
func TestAProcessWithoutLimitsDoesNotAnswer(t *testing.T) {
	var published atomic.Int32
	c := controlOf(t, askedBroker(t, func(net.Conn, uint16, string, string) bool { published.Add(1); return true }))
	body, err := json.Marshal(command.Request{Do: command.Tell})
	require.NoError(t, err)
	tell := amqp091.Delivery{ReplyTo: command.ReplyQueue + ".7", CorrelationId: "1", Body: body}
	c.answer(t.Context(), tell)
	assert.Zero(t, published.Load())
	tell.Body, err = json.Marshal(command.Request{
		Do: command.Tell, Told: []command.Request{{Key: "7", Lasts: time.Hour, At: 1}},
	})
	require.NoError(t, err)
	c.answer(t.Context(), tell)
	assert.EqualValues(t, 1, published.Load(), "the one that asks has told it a limit")
}

// The first answer may come from another app of the broker, from a process that has begun at the same moment, or from
// this process itself: it knows no limit.
func TestLimitsAreThoseOfAnyAnswer(t *testing.T) {
	address := askedBroker(t, func(conn net.Conn, channel uint16, tag, correlation string) bool {
		deliver(conn, channel, tag, correlation, command.Answer{Host: "invoices"})
		deliver(conn, channel, tag, correlation, command.Answer{Host: "webhooks", Told: []command.Request{
			{Queue: "webhooks", Do: command.Limit, Key: "7", Lasts: time.Hour, At: 1},
		}})
		return true
	})
	c := controlOf(t, address)
	g := gate.New(16)
	c.addKeyed(keyed{"deliver", "webhooks", g})
	assert.Len(t, g.Keys(), 1)
}
