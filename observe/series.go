package observe

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

const (
	// other is the value of a label beyond Config.MaxSeries.
	other = "other"

	// maxReason and maxLabel are the lengths of labels, in bytes.
	maxReason = 64
	maxLabel  = 255
)

// labelText returns a value that Prometheus accepts: valid UTF-8, of at most so many bytes. It allocates nothing
// where the text is one.
func labelText(text string, most int) string {
	if len(text) > most {
		text = text[:most]
		for cut := 1; cut < utf8.UTFMax && cut < len(text); cut++ { // the cut may be within a character
			if utf8.RuneStart(text[len(text)-cut]) {
				if !utf8.FullRuneInString(text[len(text)-cut:]) {
					text = text[:len(text)-cut]
				}
				break
			}
		}
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// A table has a value for each of a bounded number of keys. It is safe for concurrent use. A get of a key that it has
// takes no lock and allocates nothing.
type table[K comparable, V any] struct {
	most   int
	value  func(K) V
	beyond func(K) K // the key of those beyond most

	read atomic.Pointer[map[K]V]

	mu     sync.Mutex
	all    map[K]V // those of read, and later ones
	misses int     // of read, since it was made
	extra  map[K]V // of the keys of beyond
}

func newTable[K comparable, V any](most int, value func(K) V, beyond func(K) K) *table[K, V] {
	t := &table[K, V]{most: most, value: value, beyond: beyond, all: map[K]V{}, extra: map[K]V{}}
	t.read.Store(&map[K]V{})
	return t
}

func (t *table[K, V]) get(key K) V {
	if value, found := (*t.read.Load())[key]; found {
		return value
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	value, found := t.all[key]
	if !found {
		if len(t.all) >= t.most {
			return t.outside(t.beyond(key))
		}
		value = t.value(key)
		t.all[key] = value
	}
	if t.misses++; t.misses >= len(t.all) { // so copies cost a constant for each key
		read := maps.Clone(t.all)
		t.read.Store(&read)
		t.misses = 0
	}
	return value
}

func (t *table[K, V]) outside(key K) V {
	value, found := t.extra[key]
	if !found {
		value = t.value(key)
		t.extra[key] = value
	}
	return value
}
