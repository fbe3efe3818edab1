package model

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// The kinds of frames.
const (
	frameMethod    = 1
	frameHeader    = 2
	frameBody      = 3
	frameHeartbeat = 8
	frameEnd       = 0xCE

	frameMax   = 131072
	channelMax = 2047
)

// reader reads the fields of a frame. What is missing reads as zero: a client that is not tested here wrote it.
type reader struct{ *bytes.Reader }

func read(p []byte) reader { return reader{bytes.NewReader(p)} }

func (r reader) bytes(n int) []byte {
	p := make([]byte, min(n, r.Len()))
	_, _ = io.ReadFull(r, p)
	return p
}
func (r reader) number(size int) uint64 {
	var p [8]byte
	copy(p[8-size:], r.bytes(size))
	return binary.BigEndian.Uint64(p[:])
}
func (r reader) octet() byte      { return byte(r.number(1)) }
func (r reader) short() uint16    { return uint16(r.number(2)) }
func (r reader) long() uint32     { return uint32(r.number(4)) }
func (r reader) text() string     { return string(r.bytes(int(r.octet()))) }
func (r reader) longText() string { return string(r.bytes(int(r.long()))) }

func (r reader) table() amqp091.Table {
	in := read(r.bytes(int(r.long())))
	t := amqp091.Table{}
	for in.Len() > 0 {
		key := in.text()
		t[key] = in.value()
	}
	return t
}

func (r reader) value() any {
	switch r.octet() {
	case 't':
		return r.octet() != 0
	case 'b':
		return int8(r.octet())
	case 'B':
		return r.octet()
	case 's':
		return int16(r.short())
	case 'u':
		return r.short()
	case 'I':
		return int32(r.long())
	case 'i':
		return r.long()
	case 'l':
		return int64(r.number(8))
	case 'f':
		return math.Float32frombits(r.long())
	case 'd':
		return math.Float64frombits(r.number(8))
	case 'D':
		return amqp091.Decimal{Scale: r.octet(), Value: int32(r.long())}
	case 'S':
		return r.longText()
	case 'x':
		return r.bytes(int(r.long()))
	case 'T':
		return time.Unix(int64(r.number(8)), 0)
	case 'F':
		return r.table()
	case 'A':
		in := read(r.bytes(int(r.long())))
		array := []any{}
		for in.Len() > 0 {
			array = append(array, in.value())
		}
		return array
	}
	return nil
}

// writer writes the fields of a frame.
type writer struct{ bytes.Buffer }

func (w *writer) number(size int, v uint64) *writer {
	var p [8]byte
	binary.BigEndian.PutUint64(p[:], v)
	w.Write(p[8-size:])
	return w
}
func (w *writer) octet(v byte) *writer   { return w.number(1, uint64(v)) }
func (w *writer) bit(v bool) *writer     { return w.octet(octetOf(v)) }
func (w *writer) short(v uint16) *writer { return w.number(2, uint64(v)) }
func (w *writer) long(v uint32) *writer  { return w.number(4, uint64(v)) }
func (w *writer) text(s string) *writer {
	s = s[:min(len(s), 255)]
	w.octet(byte(len(s))).WriteString(s)
	return w
}
func (w *writer) longText(s string) *writer {
	w.long(uint32(len(s))).WriteString(s)
	return w
}

func octetOf(v bool) byte {
	if v {
		return 1
	}
	return 0
}

func (w *writer) table(t amqp091.Table) *writer {
	var in writer
	for _, key := range sortedKeys(t) { // a run must not depend on the order of a map
		in.text(key).value(t[key])
	}
	return w.longText(in.String())
}

func (w *writer) value(value any) {
	switch v := value.(type) {
	case bool:
		w.octet('t').bit(v)
	case int8:
		w.octet('b').octet(byte(v))
	case byte:
		w.octet('B').octet(v)
	case int16:
		w.octet('s').short(uint16(v))
	case uint16:
		w.octet('u').short(v)
	case int32:
		w.octet('I').long(uint32(v))
	case uint32:
		w.octet('i').long(v)
	case int64:
		w.octet('l').number(8, uint64(v))
	case float32:
		w.octet('f').long(math.Float32bits(v))
	case float64:
		w.octet('d').number(8, math.Float64bits(v))
	case amqp091.Decimal:
		w.octet('D').octet(v.Scale).long(uint32(v.Value))
	case string:
		w.octet('S').longText(v)
	case []byte:
		w.octet('x').longText(string(v))
	case time.Time:
		w.octet('T').number(8, uint64(v.Unix()))
	case amqp091.Table:
		w.octet('F').table(v)
	case []any:
		var in writer
		for _, each := range v {
			in.value(each)
		}
		w.octet('A').longText(in.String())
	default:
		w.octet('V')
	}
}

// properties are those of a message, in the order of their bits in a content header, from the highest on.
type properties struct {
	contentType, contentEncoding string
	headers                      amqp091.Table
	deliveryMode, priority       uint8
	correlationID, replyTo       string
	expiration, messageID        string
	timestamp                    uint64
	kind, userID, appID          string
	has                          uint16 // the bits of those that the message has
}

const (
	hasHeaders    = 1 << 13
	hasMode       = 1 << 12
	hasPriority   = 1 << 11
	hasExpiration = 1 << 8
	hasTimestamp  = 1 << 6
)

// each calls text, octet and other for the fields in their order, so that reading and writing cannot differ.
func (p *properties) each(
	text func(bit uint16, s *string), octet func(bit uint16, v *uint8), headers, timestamp func(),
) {
	text(1<<15, &p.contentType)
	text(1<<14, &p.contentEncoding)
	headers()
	octet(hasMode, &p.deliveryMode)
	octet(hasPriority, &p.priority)
	text(1<<10, &p.correlationID)
	text(1<<9, &p.replyTo)
	text(hasExpiration, &p.expiration)
	text(1<<7, &p.messageID)
	timestamp()
	text(1<<5, &p.kind)
	text(1<<4, &p.userID)
	text(1<<3, &p.appID)
}

// readHeader reads a content header.
func readHeader(payload []byte) (size uint64, p properties) {
	r := read(payload)
	r.long() // the class and the weight
	size, p.has = r.number(8), r.short()
	has := func(bit uint16) bool { return p.has&bit != 0 }
	p.each(func(bit uint16, s *string) {
		if has(bit) {
			*s = r.text()
		}
	}, func(bit uint16, v *uint8) {
		if has(bit) {
			*v = r.octet()
		}
	}, func() {
		if has(hasHeaders) {
			p.headers = r.table()
		}
	}, func() {
		if has(hasTimestamp) {
			p.timestamp = r.number(8)
		}
	})
	return size, p
}

// header writes a content header.
func (p properties) header(size int) []byte {
	var w writer
	w.short(classBasic).short(0).number(8, uint64(size)).short(p.has)
	has := func(bit uint16) bool { return p.has&bit != 0 }
	p.each(func(bit uint16, s *string) {
		if has(bit) {
			w.text(*s)
		}
	}, func(bit uint16, v *uint8) {
		if has(bit) {
			w.octet(*v)
		}
	}, func() {
		if has(hasHeaders) {
			w.table(p.headers)
		}
	}, func() {
		if has(hasTimestamp) {
			w.number(8, p.timestamp)
		}
	})
	return w.Bytes()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
