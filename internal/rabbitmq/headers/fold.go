package headers

import (
	"maps"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
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
var fields = [...]field{
	{'n', recordkey.Failures},
	{'t', recordkey.Topic},
	{'m', recordkey.Remaining},
	{'d', recordkey.DueAt},
	{'l', recordkey.LastFailedAt},
	{'f', recordkey.FirstFailedAt},
	{'a', recordkey.FirstArrivedAt},
	{'h', recordkey.Handler},
	{'e', recordkey.ErrorType},
	{'r', recordkey.Reason},
	{'u', delay.DelayedUntilKey},
	{'w', delay.DelayedForKey},
	{'s', recordkey.Snoozes},
	{'p', retry.TraceparentKey},
}

// keptFields is how many of the fields Shrink never removes.
const keptFields = 3

// A record has the values of the fields, in their order. An empty value is as none.
type record [len(fields)]string

// fold returns the record as a text: for each value its letter, its length in bytes, a colon, and the value.
func (r *record) fold() string {
	size := 0
	for _, value := range r {
		size += len(value) + len("n1024:")
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

// fieldOf returns the index of a key's field, or -1. It is a switch because that is faster than a map.
func fieldOf(key string) int {
	switch key {
	case recordkey.Failures:
		return 0
	case recordkey.Topic:
		return 1
	case recordkey.Remaining:
		return 2
	case recordkey.DueAt:
		return 3
	case recordkey.LastFailedAt:
		return 4
	case recordkey.FirstFailedAt:
		return 5
	case recordkey.FirstArrivedAt:
		return 6
	case recordkey.Handler:
		return 7
	case recordkey.ErrorType:
		return 8
	case recordkey.Reason:
		return 9
	case delay.DelayedUntilKey:
		return 10
	case delay.DelayedForKey:
		return 11
	case recordkey.Snoozes:
		return 12
	case retry.TraceparentKey:
		return 13
	}
	return -1
}
