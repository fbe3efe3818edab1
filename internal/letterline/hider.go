package letterline

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// leastText and leastNumber are how many bytes a value has at least that is also searched for in other texts:
	// shorter ones are parts of other words.
	leastText   = 3
	leastNumber = 5
	// leastInBase64 is the same for a value within a longer text of base64.
	leastInBase64 = 6
)

// hider finds values in texts: as they are and escaped, in upper and lower case. It is a tree of their letters, because
// a body may have ten thousand values.
type hider struct {
	next map[edge]int32
	ends []string // what takes the place of a value that ends at this node; empty: none ends there
}

// edge leads from a node to the next one.
type edge struct {
	node   int32
	letter rune
}

// addText adds the spellings of a text.
func (h *hider) addText(text string) {
	if len(text) < leastText || text == redacted {
		return
	}
	for _, spelling := range escaped(text) {
		h.add(spelling, redacted)
	}
	for _, spelling := range inBase64(text) {
		h.add(spelling, redacted)
	}
}

// addNumber adds the spellings of a number. A body that is decoded into a float64 and printed has an exponent.
func (h *hider) addNumber(text string) {
	spellings := []string{text}
	if value, err := strconv.ParseFloat(text, 64); err == nil {
		for _, format := range []byte("fge") {
			spellings = append(spellings, strconv.FormatFloat(value, format, -1, 64))
		}
	}
	for _, spelling := range spellings {
		if len(spelling) < leastNumber {
			continue
		}
		for _, one := range append(inBase64(spelling), escaped(spelling)...) { // "+" of an exponent is escaped in a URL
			h.add(one, "0")
		}
	}
}

// escaped returns a text as it is in a text, a URL, a text of JSON, and one of Go.
func escaped(text string) []string {
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a text cannot fail
	html, _ := json.Marshal(text)
	ascii, quoted := strconv.QuoteToASCII(text), strconv.Quote(text)
	return []string{text, url.QueryEscape(text), url.PathEscape(text), unquoted(strings.TrimSpace(plain.String())),
		unquoted(string(html)), unquoted(quoted), unquoted(ascii)}
}

func unquoted(text string) string { return text[1 : len(text)-1] }

// inBase64 returns a text in base64: alone, and within a longer text, at each of the three places that a byte can have.
func inBase64(text string) (spellings []string) {
	both := func(std string) {
		spellings = append(spellings, std, strings.NewReplacer("+", "-", "/", "_").Replace(std))
	}
	both(base64.StdEncoding.EncodeToString([]byte(text)))
	both(base64.RawStdEncoding.EncodeToString([]byte(text)))
	if len(text) < leastInBase64 {
		return spellings
	}
	for before, shared := range []int{0, 2, 3} { // the characters that also have bits of what is before
		whole := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), text...))
		both(whole[shared : (before+len(text))*8/6])
	}
	return spellings
}

func (h *hider) add(text, replacement string) {
	if h.next == nil {
		h.next, h.ends = map[edge]int32{}, []string{""}
	}
	at := int32(0)
	for len(text) > 0 {
		letter, size := folded(text)
		text = text[size:]
		to, found := h.next[edge{at, letter}]
		if !found {
			to = int32(len(h.ends))
			h.next[edge{at, letter}], h.ends = to, append(h.ends, "")
		}
		at = to
	}
	if h.ends[at] == "" {
		h.ends[at] = replacement
	}
}

// folded returns the first letter of a text in lower case. A byte that is no UTF-8 is a letter of its own.
func folded(text string) (letter rune, size int) {
	letter, size = utf8.DecodeRuneInString(text)
	if letter == utf8.RuneError && size == 1 {
		return unicode.MaxRune + 1 + rune(text[0]), 1
	}
	return unicode.ToLower(letter), size
}

// hide replaces values, the longest one where several begin at the same letter.
func (h *hider) hide(text string) string {
	if h.next == nil {
		return text
	}
	var hidden strings.Builder
	from := 0 // what is copied ends there
	for at := 0; at < len(text); {
		node, end, replacement := int32(0), 0, ""
		for to := at; to < len(text); {
			letter, size := folded(text[to:])
			next, found := h.next[edge{node, letter}]
			if !found {
				break
			}
			node, to = next, to+size
			if h.ends[node] != "" {
				end, replacement = to, h.ends[node]
			}
		}
		if end == 0 {
			_, size := folded(text[at:])
			at += size
			continue
		}
		hidden.WriteString(text[from:at])
		hidden.WriteString(replacement)
		at, from = end, end
	}
	if from == 0 {
		return text
	}
	hidden.WriteString(text[from:])
	return hidden.String()
}
