// Package msgbytes writes a message as bytes, for a server that keeps it. The message comes back byte for byte, also
// where its texts are no UTF-8.
package msgbytes

import (
	"encoding/binary"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// layout is the first byte of a message. Another layout gets another number.
const layout = 1

// ErrLayout is returned by Decode for what Encode has not written.
var ErrLayout = errors.New("it was written by another program, or by another version of this library")

// Encode returns the UUID and the metadata of a message, each text with its length before it, and its payload.
func Encode(msg *message.Message) []byte {
	size := 3*binary.MaxVarintLen64 + len(msg.UUID) + len(msg.Payload)
	for key, value := range msg.Metadata {
		size += len(key) + len(value) + 2*binary.MaxVarintLen32
	}
	b := append(make([]byte, 0, size), layout)
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	text(msg.UUID)
	b = binary.AppendUvarint(b, uint64(len(msg.Metadata)))
	for key, value := range msg.Metadata {
		text(key)
		text(value)
	}
	return append(b, msg.Payload...)
}

// Decode returns the message that was encoded.
func Decode(b string) (*message.Message, error) {
	if b == "" || b[0] != layout {
		return nil, ErrLayout
	}
	d := decoder{rest: b[1:]}
	uuid := d.text()
	metadata := message.Metadata{}
	for range d.number() {
		key := d.text()
		metadata[key] = d.text()
		if d.bad {
			break
		}
	}
	if d.bad {
		return nil, ErrLayout
	}
	msg := message.NewMessage(uuid, message.Payload(d.rest))
	msg.Metadata = metadata
	return msg, nil
}

type decoder struct {
	rest string
	bad  bool
}

// number returns a number that is at most the number of the bytes that are left.
func (d *decoder) number() int {
	n, read := binary.Uvarint([]byte(d.rest[:min(len(d.rest), binary.MaxVarintLen64)]))
	if read <= 0 || n > uint64(len(d.rest)-read) {
		d.bad, d.rest = true, ""
		return 0
	}
	d.rest = d.rest[read:]
	return int(n)
}

func (d *decoder) text() string {
	n := d.number()
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

// EncodeAll returns messages, each with its length before it.
func EncodeAll(messages []*message.Message) (all []byte) {
	for _, msg := range messages {
		one := Encode(msg)
		all = append(binary.AppendUvarint(all, uint64(len(one))), one...)
	}
	return all
}

// DecodeAll returns the messages that were encoded.
func DecodeAll(b string) (messages []*message.Message, err error) {
	for d := (decoder{rest: b}); d.rest != ""; {
		one := d.text()
		if d.bad {
			return nil, ErrLayout
		}
		msg, err := Decode(one)
		if err != nil {
			return nil, err
		}
		messages = append(messages, msg)
	}
	return messages, nil
}
