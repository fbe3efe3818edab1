package model

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"maps"
	"reflect"
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

// fixed are the values of a fixed size, by the letter that is before them.
var fixed = map[byte]any{
	't': false, 'b': int8(0), 'B': byte(0), 's': int16(0), 'u': uint16(0), 'I': int32(0), 'i': uint32(0), 'l': int64(0),
	'f': float32(0), 'd': float64(0),
}

func (r reader) value() any {
	kind := r.octet()
	if zero, is := fixed[kind]; is {
		value := reflect.New(reflect.TypeOf(zero))
		_ = binary.Read(r, binary.BigEndian, value.Interface())
		return value.Elem().Interface()
	}
	switch kind {
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

func (w *writer) bit(v bool) *writer {
	if v {
		return w.octet(1)
	}
	return w.octet(0)
}

func (w *writer) table(t amqp091.Table) *writer {
	var in writer
	for _, key := range sorted(t) {
		in.text(key).value(t[key])
	}
	return w.longText(in.String())
}

func (w *writer) value(value any) {
	switch v := value.(type) {
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
		for kind, zero := range fixed {
			if reflect.TypeOf(zero) == reflect.TypeOf(value) {
				w.octet(kind)
				_ = binary.Write(w, binary.BigEndian, value)
				return
			}
		}
		w.octet('V')
	}
}

// fields returns the properties of a message in the order of their bits in a content header, from the highest on. What
// is zero is one that the message does not have.
func fields(p *amqp091.Publishing) []any {
	return []any{&p.ContentType, &p.ContentEncoding, &p.Headers, &p.DeliveryMode, &p.Priority, &p.CorrelationId,
		&p.ReplyTo, &p.Expiration, &p.MessageId, &p.Timestamp, &p.Type, &p.UserId, &p.AppId}
}

// readHeader reads a content header.
func readHeader(payload []byte) (size uint64, p amqp091.Publishing) {
	r := read(payload)
	r.long() // the class and the weight
	size = r.number(8)
	has := r.short()
	for i, field := range fields(&p) {
		if has&(1<<(15-i)) == 0 {
			continue
		}
		switch f := field.(type) {
		case *string:
			*f = r.text()
		case *amqp091.Table:
			*f = r.table()
		case *byte:
			*f = r.octet()
		case *time.Time:
			*f = time.Unix(int64(r.number(8)), 0)
		}
	}
	return size, p
}

// beforeProperties is how many bytes a content header has before the properties.
const beforeProperties = 2 + 2 + 8

// writeHeader writes a content header.
func writeHeader(p amqp091.Publishing) []byte {
	var w, written writer
	var has uint16
	for i, field := range fields(&p) {
		if reflect.ValueOf(field).Elem().IsZero() {
			continue
		}
		has |= 1 << (15 - i)
		switch f := field.(type) {
		case *string:
			written.text(*f)
		case *amqp091.Table:
			written.table(*f)
		case *byte:
			written.octet(*f)
		case *time.Time:
			written.number(8, uint64(f.Unix()))
		}
	}
	w.short(classBasic).short(0).number(8, uint64(len(p.Body))).short(has).Write(written.Bytes())
	return w.Bytes()
}

// sorted returns the keys of a map in their order: a run must not depend on the order of a map.
func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
