// Package shell quotes words of the commands that are printed.
package shell

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Quote quotes a text for a POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Word is Quote where the text needs it.
func Word(s string) string {
	plain := func(r rune) bool {
		return r == '_' || strings.ContainsRune("-.,:/@%+=", r) || r < utf8.RuneSelf &&
			(unicode.IsLetter(r) || unicode.IsDigit(r))
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return Quote(s)
}
