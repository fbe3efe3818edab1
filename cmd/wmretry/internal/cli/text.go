package cli

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tieredretry/watermill-retry/internal/lettertext"
	"github.com/tieredretry/watermill-retry/internal/shell"
)

var plural, thousands = lettertext.Plural, lettertext.Number

// safe escapes what could change the terminal: control characters, characters without a glyph, and bytes that are not
// UTF-8. Letters come from elsewhere.
func safe(s string) string {
	return escape(s, false)
}

// safeLines is safe, and keeps line feeds and tabs.
func safeLines(s string) string {
	return escape(s, true)
}

// shellWord quotes a text for a POSIX shell where it must be quoted, as one word of a command that is printed.
func shellWord(s string) string { return safe(shell.Word(s)) }

func escape(s string, lines bool) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) || lines && (r == '\n' || r == '\t') }
	if utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	var text strings.Builder
	for rest := s; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if plain(r) && (r != utf8.RuneError || size > 1) {
			text.WriteString(rest[:size])
		} else {
			quoted := strconv.Quote(rest[:size])
			text.WriteString(quoted[1 : len(quoted)-1])
		}
		rest = rest[size:]
	}
	return text.String()
}

// escapeJSON escapes what encoding/json leaves as it is, and could change the terminal.
func escapeJSON(line string) string {
	odd := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }
	if strings.IndexFunc(line, odd) < 0 {
		return line
	}
	var text strings.Builder
	for _, r := range line {
		if !odd(r) {
			text.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			_, _ = fmt.Fprintf(&text, `\u%04x`, unit)
		}
	}
	return text.String()
}
