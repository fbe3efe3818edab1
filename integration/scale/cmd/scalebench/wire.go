package main

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// A wire counts what an app declares: it reads the frames that go to the broker.
type wire struct {
	mu      sync.Mutex
	queues  map[string]int // queue.declare by queue, without passive ones
	methods int            // exchange.declare, queue.declare and queue.bind, without passive declarations
}

// counts returns how often the queue is declared that is declared most often, and how many declarations and bindings there are.
func (w *wire) counts() (most, all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, count := range w.queues {
		most = max(most, count)
	}
	return most, w.methods
}

const dialTimeout = 30 * time.Second // that of amqp091-go

func (w *wire) dial(network, address string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, address, dialTimeout)
	if err != nil {
		return nil, err
	}
	// amqp091-go expects a deadline for its handshake, and removes it afterwards.
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &countingConn{Conn: conn, wire: w}, nil
}

// A countingConn splits what is written into frames. The client writes from one goroutine at a time.
type countingConn struct {
	net.Conn
	wire     *wire
	pending  []byte
	greeting bool // the protocol header has passed
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.pending = append(c.pending, p...)
	if !c.greeting && len(c.pending) >= len(protocolHeader) {
		c.greeting, c.pending = true, c.pending[len(protocolHeader):]
	}
	for c.greeting && len(c.pending) >= frameHeader {
		size := frameHeader + int(binary.BigEndian.Uint32(c.pending[3:])) + 1
		if len(c.pending) < size {
			break
		}
		if c.pending[0] == methodFrame {
			c.wire.count(c.pending[frameHeader : size-1])
		}
		c.pending = c.pending[size:]
	}
	return c.Conn.Write(p)
}

// Of AMQP 0-9-1.
const (
	protocolHeader  = "AMQP\x00\x00\x09\x01"
	frameHeader     = 7 // type, channel, size
	methodFrame     = 1
	exchangeDeclare = 40<<16 | 10
	queueDeclare    = 50<<16 | 10
	queueBind       = 50<<16 | 20
)

// count counts a method: its class and number, and its arguments, of which the first is reserved.
func (w *wire) count(method []byte) {
	if len(method) < 7 {
		return
	}
	kind := binary.BigEndian.Uint32(method)
	name, rest := shortString(method[6:])
	switch kind {
	case exchangeDeclare:
		_, rest = shortString(rest) // its type
	case queueDeclare:
	case queueBind:
		rest = []byte{0}
	default:
		return
	}
	const passive = 1
	if len(rest) == 0 || rest[0]&passive != 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.methods++
	if kind == queueDeclare {
		if w.queues == nil {
			w.queues = map[string]int{}
		}
		w.queues[name]++
	}
}

// shortString reads a text with its length in the first byte.
func shortString(data []byte) (text string, rest []byte) {
	if len(data) == 0 || len(data) < 1+int(data[0]) {
		return "", nil
	}
	end := 1 + int(data[0])
	return string(data[1:end]), data[end:]
}
