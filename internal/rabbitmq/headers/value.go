package headers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A value is encoded as the tag of its AMQP field type, then its bytes. A number has eight bytes, or one if its type
// has eight bits. Texts, arrays and tables begin with their length.

// maxDepth bounds nested tables. A table from a broker is not deeper.
const maxDepth = 64

var errEncoding = errors.New("not an encoding of AMQP properties")

// AppendValue appends the encoding of a header's value. Equal values have equal encodings. It encodes the types that
// amqp091-go reads from the wire. A value of another type is kept as its text.
func AppendValue(b []byte, value any) []byte {
	length := func(tag byte, n int) []byte { return binary.AppendUvarint(append(b, tag), uint64(n)) }
	fixed := func(tag byte, bits uint64) []byte { return binary.BigEndian.AppendUint64(append(b, tag), bits) }
	switch v := value.(type) {
	case nil:
		return append(b, 'V')
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case byte:
		return append(b, 'B', v)
	case int8:
		return append(b, 'b', byte(v))
	case int16:
		return fixed('s', uint64(v))
	case uint16:
		return fixed('u', uint64(v))
	case int32:
		return fixed('I', uint64(v))
	case uint32:
		return fixed('i', uint64(v))
	case int64:
		return fixed('l', uint64(v))
	case float32:
		return fixed('f', uint64(math.Float32bits(v)))
	case float64:
		return fixed('d', math.Float64bits(v))
	case time.Time:
		return appendTime(b, v)
	case amqp091.Decimal:
		return binary.BigEndian.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case string:
		return appendText(b, v)
	case []byte:
		return append(length('x', len(v)), v...)
	case []any:
		b = length('A', len(v))
		for _, element := range v {
			b = AppendValue(b, element)
		}
		return b
	case amqp091.Table:
		b = length('F', len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) { // equal headers have equal encodings
			b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
			b = AppendValue(b, v[key])
		}
		return b
	default:
		return appendText(b, fmt.Sprint(v))
	}
}

// appendText and appendTime encode as AppendValue, without an allocation for the conversion to any.
func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(append(b, 'S'), uint64(len(text))), text...)
}

func appendTime(b []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(append(b, 'T'), uint64(t.Unix()))
}

// decoder reads what AppendValue wrote. After its first error it returns zero values.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail() { d.err, d.rest = errEncoding, nil }

func (d *decoder) take(n uint64) []byte {
	if d.err != nil || n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte {
	if taken := d.take(1); taken != nil {
		return taken[0]
	}
	return 0
}

func (d *decoder) bits() uint64 {
	if taken := d.take(8); taken != nil {
		return binary.BigEndian.Uint64(taken)
	}
	return 0
}

func (d *decoder) length() uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 || n > uint64(len(d.rest)) { // an element has at least one byte
		d.fail()
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) value(depth int) any {
	if depth == 0 {
		d.fail()
	}
	if d.err != nil {
		return nil
	}
	switch tag := d.byte(); tag {
	case 'V':
		return nil
	case 't':
		return d.byte() != 0
	case 'B':
		return d.byte()
	case 'b':
		return int8(d.byte())
	case 's':
		return int16(d.bits())
	case 'u':
		return uint16(d.bits())
	case 'I':
		return int32(d.bits())
	case 'i':
		return uint32(d.bits())
	case 'l':
		return int64(d.bits())
	case 'f':
		return math.Float32frombits(uint32(d.bits()))
	case 'd':
		return math.Float64frombits(d.bits())
	case 'T':
		return time.Unix(int64(d.bits()), 0)
	case 'D':
		scale := d.byte()
		if digits := d.take(4); digits != nil {
			return amqp091.Decimal{Scale: scale, Value: int32(binary.BigEndian.Uint32(digits))}
		}
	case 'S':
		return string(d.take(d.length()))
	case 'x':
		return append([]byte{}, d.take(d.length())...)
	case 'A':
		array := []any{}
		for range d.length() {
			array = append(array, d.value(depth-1))
		}
		return array
	case 'F':
		table := amqp091.Table{}
		for range d.length() {
			key := string(d.take(d.length()))
			table[key] = d.value(depth - 1)
		}
		return table
	default:
		d.fail()
	}
	return nil
}
