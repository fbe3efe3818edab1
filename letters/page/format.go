package page

import (
	"fmt"
	"html/template"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tieredretry/watermill-retry/backoff"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"number": number, "ago": func(at time.Time) string { return ago(time.Since(at)) }, "stamp": stamp, "iso": iso,
	"span":   span,
	"plural": plural, "size": size, "visible": visible,
	"delay": func(d time.Duration) string { return backoff.Tier(d).String() }, "percent": percent,
	"left": func(at time.Time) string { return span(max(time.Until(at), 0)) },
}

// number writes a number with commas between thousands.
func number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + more
}

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
	seconds := int64(d.Round(time.Second) / time.Second)
	var text []string
	for _, unit := range [...]struct {
		name    string
		seconds int64
	}{{"d", 24 * 60 * 60}, {"h", 60 * 60}, {"min", 60}, {"s", 1}} {
		if n := seconds / unit.seconds; n > 0 {
			text = append(text, strconv.FormatInt(n, 10)+" "+unit.name)
			seconds %= unit.seconds
		} else if len(text) > 0 {
			break
		}
		if len(text) == 2 {
			break
		}
	}
	return strings.Join(text, " ")
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', -1, 64) + "%" }

func size(bytes int) string {
	switch {
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return plural(bytes, "byte", "bytes")
}

// cut returns the text with at most this number of bytes.
func cut(most int, text string) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// visible makes a text harmless for the layout: control characters, and those that change the direction of the text
// after them, become visible. html/template escapes the rest.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ':
			return 0x2400 + r
		case r == 0x7f:
			return 0x2421
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
}
