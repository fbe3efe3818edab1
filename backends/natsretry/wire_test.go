package natsretry

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wire is a NATS server as far as requests for messages go: a test answers them. It has one client.
type wire struct {
	t       *testing.T
	answers func(s *session, inbox string, n int) // called for each request
	resumed func(s *session)                      // called for each subscription on another connection than the first
	replies chan string                           // the bodies of what was sent about deliveries
}

// session is one connection of a client.
type session struct {
	net.Conn
	subscriptions map[string]string // by subject
	inboxes       []string          // their subjects, in the order of the subscriptions
	deliveries    int
}

// deliver sends messages to the subscription of an inbox.
func (s *session) deliver(inbox string, n int) {
	var all strings.Builder
	for range n {
		s.deliveries++
		_, _ = fmt.Fprintf(&all, "MSG orders %s $JS.ACK.%d 2\r\nhi\r\n", s.subscriptions[inbox], s.deliveries)
	}
	_, _ = io.WriteString(s, all.String())
}

// status sends the end of a request.
func (s *session) status(inbox, words string) {
	header := "NATS/1.0 " + words + "\r\n\r\n"
	_, _ = fmt.Fprintf(s, "HMSG %s %s %d %d\r\n%s\r\n", inbox, s.subscriptions[inbox], len(header), len(header), header)
}

// queue returns a queue whose client is connected to the server.
func (w *wire) queue(t *testing.T) *queue {
	t.Helper()
	w.t, w.replies = t, make(chan string, 100)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for first := true; ; first = false {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.serve(&session{Conn: conn, subscriptions: map[string]string{}}, first)
		}
	}()
	conn, err := nats.Connect("nats://"+listener.Addr().String(), nats.MaxReconnects(-1),
		nats.ReconnectWait(time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	l := newLinks(conn)
	t.Cleanup(l.close)
	return &queue{
		server: &server{Config: Config{Conn: conn}.withDefaults()}, topic: "orders", links: l, logger: watermill.NopLogger{},
		next: "$JS.API.CONSUMER.MSG.NEXT.orders.billing", waits: newWaits(defaultLease),
	}
}

// serve reads what a client sends. A request without a subscription has no answer.
func (w *wire) serve(s *session, first bool) {
	_, _ = io.WriteString(s, `INFO {"headers":true,"max_payload":1048576,"proto":1}`+"\r\n")
	for in := bufio.NewReader(s); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch words := strings.Fields(line); words[0] {
		case "PING":
			_, _ = io.WriteString(s, "PONG\r\n")
		case "SUB":
			s.subscriptions[words[1]] = words[2]
			s.inboxes = append(s.inboxes, words[1])
			if !first && w.resumed != nil {
				w.resumed(s)
			}
		case "UNSUB":
			for inbox, id := range s.subscriptions {
				if id == words[1] {
					delete(s.subscriptions, inbox)
				}
			}
		case "PUB":
			size, _ := strconv.Atoi(words[len(words)-1])
			body := make([]byte, size+len("\r\n"))
			_, _ = io.ReadFull(in, body)
			if strings.HasPrefix(words[1], "$JS.ACK.") {
				w.replies <- words[1] + " " + string(body[:size])
				continue
			}
			var request struct{ Batch int }
			assert.NoError(w.t, json.Unmarshal(body[:size], &request))
			if assert.Contains(w.t, s.subscriptions, words[2], "its client listens to the answer") {
				w.answers(s, words[2], request.Batch)
			}
		}
	}
}
