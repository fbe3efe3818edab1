// Package lettertext shows the contents of a letter, and numbers of letters, as text: the command and the page show the
// same.
package lettertext

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Header returns the type of a header's value in words of AMQP, and the value as text.
func Header(value any) (kind, text string) {
	switch v := value.(type) {
	case nil:
		return "void", ""
	case []byte:
		return "bytes", hex.EncodeToString(v)
	case time.Time:
		return "timestamp", v.UTC().Format(time.RFC3339)
	case byte:
		return "byte", fmt.Sprint(v)
	}
	kind = map[reflect.Kind]string{
		reflect.Map: "table", reflect.Slice: "array", reflect.Struct: "decimal",
	}[reflect.TypeOf(value).Kind()]
	if kind == "" {
		return fmt.Sprintf("%T", value), fmt.Sprint(value)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return kind, fmt.Sprint(value)
	}
	return kind, string(encoded)
}

// Body returns a body as text, and which form that is: JSON with indents, text as it is, or hex where the body is
// bytes. The text is not escaped.
func Body(body []byte) (form, text string) {
	var indented bytes.Buffer
	trimmed := bytes.TrimSpace(body)
	switch {
	case len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') && depth(body) <= maxDepth &&
		json.Indent(&indented, body, "", "  ") == nil:
		return "JSON", indented.String()
	case isText(body):
		return "text", string(body)
	}
	return "hex", hex.Dump(body)
}

// maxDepth is how deep JSON is indented: each level adds spaces to each line.
const maxDepth = 64

// depth returns how deep arrays and objects are at most. It counts the brackets in texts too.
func depth(body []byte) (deepest int) {
	now := 0
	for _, b := range body {
		switch b {
		case '[', '{':
			now++
			deepest = max(deepest, now)
		case ']', '}':
			now--
		}
	}
	return deepest
}

// isText reports whether at most a tenth of a body are characters without a glyph.
func isText(body []byte) bool {
	odd := 0
	for _, r := range string(body) {
		if !unicode.IsPrint(r) && r != '\n' && r != '\t' && r != '\r' {
			odd++
		}
	}
	return utf8.Valid(body) && odd*10 <= len(body)
}

// Cut returns at most so many bytes of a text. It does not end within a character.
func Cut(most int, text string) string {
	if len(text) <= most {
		return text
	}
	end := most
	for end > max(most-utf8.UTFMax, 0) && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// Short is Cut, with a mark at the end of what is cut.
func Short(most int, text string) string {
	if len(text) > most {
		text = Cut(most, text) + "…"
	}
	return text
}

// Largest returns the names with the largest counts, so many at most. The last one is "", which stands for others.
func Largest(counts map[string]int, most int) []string {
	sorted := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		switch {
		case a == "":
			return 1
		case b == "":
			return -1
		}
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	return sorted[:min(len(sorted), most)]
}

// Number writes a number with commas between thousands: 12,345.
func Number(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Plural writes a number with its noun.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + many
}

// Unused returns the rules of a redaction that have replaced nothing. used are in lower case.
func Unused(rules, used []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(rule string) bool {
		return slices.Contains(used, strings.ToLower(rule))
	})
}
