package headers

import (
	"maps"
	"sync"
	"sync/atomic"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A scratch is what one call of Unmarshal needs for itself. It is used again, because a copy of the headers and a
// growing encoding would be most of what Unmarshal allocates.
type scratch struct {
	headers  []header // the headers of the delivery: the app's marshaler may write into the delivery's map
	typed    bool     // one of them is not a string
	encoding []byte
}

type header struct {
	key   string
	value any
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Larger ones are not kept, because few messages need them.
const (
	keptHeaders  = 256
	keptEncoding = 4096
)

func borrow(headers amqp091.Table) *scratch {
	s := scratches.Get().(*scratch)
	for key, value := range headers {
		if _, text := value.(string); !text {
			s.typed = true
		}
		s.headers = append(s.headers, header{key, value})
	}
	return s
}

func (s *scratch) giveBack() {
	if len(s.headers) > keptHeaders || cap(s.encoding) > keptEncoding {
		return
	}
	clear(s.headers) // the delivery's values are not kept in memory
	s.headers, s.typed = s.headers[:0], false
	scratches.Put(s)
}

// strings returns the string headers without those of the broker.
func (s *scratch) strings() amqp091.Table {
	texts := make(amqp091.Table, len(s.headers))
	for _, h := range s.headers {
		if _, ok := h.value.(string); ok && !isBroker(h.key) {
			texts[h.key] = h.value
		}
	}
	return texts
}

// shared has the encodings of properties that many messages have, such as their exchange and content type, as strings.
type shared struct {
	texts  atomic.Pointer[map[string]string] // replaced, never changed
	adding sync.Mutex
}

// maxShared is how many encodings are kept: an app has few exchanges, but it may have many routing keys.
const maxShared = 64

func (s *shared) text(encoding []byte) string {
	if len(encoding) == 0 {
		return ""
	}
	known := s.texts.Load()
	if known != nil {
		if text, found := (*known)[string(encoding)]; found {
			return text
		}
		if len(*known) >= maxShared {
			return string(encoding)
		}
	}
	return s.add(string(encoding))
}

func (s *shared) add(text string) string {
	s.adding.Lock()
	defer s.adding.Unlock()
	texts := map[string]string{}
	if known := s.texts.Load(); known != nil {
		maps.Copy(texts, *known)
	}
	if len(texts) < maxShared {
		texts[text] = text
		s.texts.Store(&texts)
	}
	return text
}
