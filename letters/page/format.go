package page

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/lettertext"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"number": number, "ago": func(at time.Time) string { return ago(time.Since(at)) }, "stamp": stamp, "iso": iso,
	"span":   span,
	"plural": plural, "size": size, "visible": visible, "largest": lettertext.Largest,
	"short":   func(text any) string { return visible(cut(maxReason, fmt.Sprint(text))) },
	"brief":   func(text any) string { return visible(cut(80, fmt.Sprint(text))) },
	"value":   func(text string) string { return visible(cut(maxValue, text)) },
	"delay":   func(d time.Duration) string { return backoff.Tier(d).String() },
	"percent": func(share float64) string { return strconv.FormatFloat(100*share, 'f', -1, 64) + "%" },
	"left":    func(at time.Time) string { return span(max(time.Until(at), 0)) },
	"folder":  folderOf,
	"plus":    func(a, b int) int { return a + b },
	"tens":    func(percent int) int { return percent / 10 * 10 },
	// share is how full the bar of a number is, beside that of the largest one, from 0 to 100.
	"share": func(n, largest int) int { return max(100*n+largest-1, 0) / max(largest, 1) },
	"waits": func(n uint64) int { return int(min(n, math.MaxInt)) },
}

// first returns so many rows at most, and how many there are beyond.
func first[T any](most int, all []T) (shown []T, hidden int) {
	shown = all[:min(len(all), most)]
	return shown, len(all) - len(shown)
}

var number, plural, cut = lettertext.Number, lettertext.Plural, lettertext.Short

func stamp(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

func iso(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func ago(d time.Duration) string {
	if d < time.Second {
		return "now"
	}
	return span(d) + " ago"
}

// span writes a duration with its two largest units.
func span(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	seconds := int(d.Round(time.Second).Seconds())
	var text []string
	for _, unit := range [...]struct {
		name    string
		seconds int
	}{{"d", 24 * 60 * 60}, {"h", 60 * 60}, {"min", 60}, {"s", 1}} {
		if n := seconds / unit.seconds; n > 0 {
			text = append(text, fmt.Sprint(n, " ", unit.name))
		} else if len(text) > 0 {
			break
		}
		seconds %= unit.seconds
	}
	return strings.Join(text[:min(len(text), 2)], " ")
}

func size(bytes int) string {
	switch {
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return plural(bytes, "byte", "bytes")
}

// unseen are the names of characters that have no glyph, or change the direction of the text after them.
var unseen = map[rune]string{
	0xad: "soft hyphen", 0x61c: "arabic letter mark", 0x180e: "vowel separator", 0x200b: "zero width space",
	0x200c: "zero width non-joiner", 0x200d: "zero width joiner", 0x200e: "left-to-right mark",
	0x200f: "right-to-left mark", 0x2028: "line separator", 0x2029: "paragraph separator",
	0x202a: "left-to-right embedding", 0x202b: "right-to-left embedding", 0x202c: "end of direction",
	0x202d: "left-to-right override", 0x202e: "right-to-left override", 0x2060: "word joiner",
	0x2066: "left-to-right isolate", 0x2067: "right-to-left isolate", 0x2068: "first strong isolate",
	0x2069: "end of isolate", 0xfeff: "byte order mark",
}

// visible makes a text harmless for the layout: control characters, those without a glyph, and those that change the
// direction of the text after them, become visible. html/template escapes the rest.
func visible(text string) string {
	var shown strings.Builder
	for _, r := range strings.ToValidUTF8(text, string(unicode.ReplacementChar)) {
		name := unseen[r]
		switch {
		case name != "":
			shown.WriteString("⟨" + name + "⟩")
		case r > 0xe0020 && r < 0xe007f:
			shown.WriteString("⟨tag " + string(r-0xe0000) + "⟩")
		case r >= 0xe0000 && r <= 0xe007f:
			shown.WriteString("⟨tag⟩")
		case r == '\n' || r == '\t':
			shown.WriteRune(r)
		case r < ' ':
			shown.WriteRune(0x2400 + r)
		case r == 0x7f:
			shown.WriteRune(0x2421)
		case unicode.IsControl(r):
			shown.WriteRune(unicode.ReplacementChar)
		default:
			shown.WriteRune(r)
		}
	}
	return shown.String()
}
