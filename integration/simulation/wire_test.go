package simulation

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
)

// A wire records the methods that an app sends to a broker.
type wire struct {
	broker *model.Broker

	mu          sync.Mutex
	connections []*recorder
}

func (w *wire) dial(network, address string) (net.Conn, error) {
	conn, err := w.broker.Dial(network, address)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &recorder{Conn: conn, header: 8, methods: map[string]int{}}
	w.connections = append(w.connections, r)
	return r, nil
}

func (w *wire) dialled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.connections)
}

// consuming returns what was sent over the last connection that has a consumer.
func (w *wire) consuming() *recorder {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.connections) - 1; i >= 0; i-- {
		if w.connections[i].count("basic.consume") > 0 {
			return w.connections[i]
		}
	}
	return &recorder{}
}

// A recorder reads the frames that are written to a connection.
type recorder struct {
	net.Conn

	mu      sync.Mutex
	header  int // bytes of the protocol header that are left
	pending []byte
	methods map[string]int
	sent    []string // the methods with their objects, in order
}

func (r *recorder) Write(data []byte) (int, error) {
	n, err := r.Conn.Write(data)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, data[:n]...)
	skip := min(r.header, len(r.pending))
	r.header, r.pending = r.header-skip, r.pending[skip:]
	const head, end = 7, 1 // of a frame: type, channel, size; its last byte
	for r.header == 0 && len(r.pending) >= head {
		size := int(binary.BigEndian.Uint32(r.pending[3:]))
		if len(r.pending) < head+size+end {
			break
		}
		if r.pending[0] == 1 {
			r.record(r.pending[head : head+size])
		}
		r.pending = r.pending[head+size+end:]
	}
	return n, err
}

// recordedMethods are those that are counted, by their class and number.
var recordedMethods = map[[2]uint16]string{
	{20, 10}: "channel.open", {40, 10}: "exchange.declare", {50, 10}: "queue.declare", {50, 20}: "queue.bind",
	{60, 10}: "basic.qos", {60, 20}: "basic.consume",
}

// record counts a method by its name, and those that declare or consume also by their object.
func (r *recorder) record(method []byte) {
	name := recordedMethods[[2]uint16{binary.BigEndian.Uint16(method), binary.BigEndian.Uint16(method[2:])}]
	if name == "" || name == "channel.open" || name == "basic.qos" {
		r.methods[name]++
		return
	}
	text := func(at int) (string, int) {
		return string(method[at+1 : at+1+int(method[at])]), at + 1 + int(method[at])
	}
	object, at := text(6)
	switch name {
	case "exchange.declare":
		_, at = text(at)
		if method[at]&1 == 1 {
			name += " passive"
		}
	case "queue.declare":
		if method[at]&1 == 1 {
			name += " passive"
		}
	case "queue.bind":
		exchange, _ := text(at)
		object += " to " + exchange
	}
	r.methods[name]++
	r.methods[name+" "+object]++
	r.sent = append(r.sent, name+" "+object)
}

// at is the place of a method among those that were sent, such as "queue.bind orders.dead to retry".
func (r *recorder) at(t testing.TB, method string) int {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Contains(t, r.sent, method)
	return slices.Index(r.sent, method)
}

// count is how often a method was sent, such as "queue.declare" or "queue.declare orders".
func (r *recorder) count(method string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.methods[method]
}
