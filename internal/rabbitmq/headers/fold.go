package headers

import (
	"maps"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// recordHeader holds the failure record of a message that waits on a tier, as one header: the broker takes longer for a
// message with many headers. Dead letters have a header for each key, so that any tool can read them.
const recordHeader = "retry_record"

// A field is a key of the failure record, and the letter that stands for it in recordHeader.
type field struct {
	letter byte
	key    string
}

// fields are the keys of the record of a message that waits, the most important first: Shrink removes the others from
// the end.
var fields = func() (all []field) {
	for _, l := range recordkey.Letters {
		all = append(all, field{l.Letter, l.Key})
	}
	return all
}()

// fieldsByLength are the indexes of the fields whose keys have the same length. Each key of each message is looked up:
// this is faster than a map.
var fieldsByLength = func() (table [32][]int) {
	for i, f := range fields {
		table[len(f.key)] = append(table[len(f.key)], i)
	}
	return table
}()

// fieldOf returns the index of a key's field, or -1.
func fieldOf(key string) int {
	if len(key) < len(fieldsByLength) {
		for _, i := range fieldsByLength[len(key)] {
			if fields[i].key == key {
				return i
			}
		}
	}
	return -1
}

// keptFields is how many of the fields Shrink never removes.
const keptFields = 3

// A record has the values of the fields, in their order. An empty value is as none. It is an array with room for all
// fields because a slice would be an allocation for each message.
type record [16]string

// fold returns the record as a text: for each value its letter, its length in bytes, a colon, and the value.
func (r *record) fold() string {
	size := 0
	for _, value := range r {
		if value != "" {
			size += len(value) + len("n1024:")
		}
	}
	var text strings.Builder
	text.Grow(size)
	var digits [20]byte
	for i, value := range r {
		if value == "" {
			continue
		}
		text.WriteByte(fields[i].letter)
		text.Write(strconv.AppendInt(digits[:0], int64(len(value)), 10))
		text.WriteByte(':')
		text.WriteString(value)
	}
	return text.String()
}

// unfold reads what fold wrote. It ignores unknown letters, and reports false for any other text.
func unfold(text string) (r record, ok bool) {
	for text != "" {
		letter := text[0]
		digits, rest, found := strings.Cut(text[1:], ":")
		length, err := strconv.ParseUint(digits, 10, 32)
		if !found || err != nil || length > uint64(len(rest)) {
			return record{}, false
		}
		for i, f := range fields {
			if f.letter == letter {
				r[i] = rest[:length]
				break
			}
		}
		text = rest[length:]
	}
	return r, true
}

// write returns the metadata with the keys of the record. It makes a map of the right size, because a map that grows is
// slower.
func (r *record) write(metadata message.Metadata) message.Metadata {
	all := make(message.Metadata, len(metadata)+len(fields))
	maps.Copy(all, metadata)
	r.writeInto(all)
	return all
}

func (r *record) writeInto(metadata message.Metadata) {
	for i, f := range fields {
		if r[i] != "" {
			metadata[f.key] = r[i]
		}
	}
}

// shrink makes the folded text shorter by at least excess bytes, if it is long enough, and returns what is left of
// excess.
func (r *record) shrink(excess int) int {
	for i := len(fields) - 1; i >= keptFields && excess > 0; i-- {
		value := r[i]
		switch {
		case value == "":
		case fields[i].key == recordkey.Reason && excess < len(value):
			r[i] = strings.ToValidUTF8(value[:len(value)-excess], "")
			return 0
		default:
			r[i] = ""
			excess -= len(value) + len("n:") + len(strconv.Itoa(len(value)))
		}
	}
	return excess
}
