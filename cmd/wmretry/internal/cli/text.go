package cli

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// safe escapes what could change the terminal: control characters, characters without a glyph, and bytes that are not UTF-8. Letters
// come from elsewhere.
func safe(s string) string {
	return escape(s, false)
}

// safeLines is safe, and keeps line feeds and tabs.
func safeLines(s string) string {
	return escape(s, true)
}

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
