package registry

import (
	"strings"
	"unicode/utf8"
)

func everything(string, string) bool { return true }

// shortKeys: an AMQP header name has at most 255 bytes.
func shortKeys(key, _ string) bool { return len(key) <= 255 }

// httpHeaders: NATS headers follow the rules of HTTP. net/http leaves out a header whose name is not a token,
// replaces a line break in a value by a space, and removes white space around a value.
func httpHeaders(key, value string) bool {
	token := key != ""
	for _, r := range key {
		token = token && r > ' ' && r < 0x7f && !strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
	}
	return token && !strings.ContainsAny(value, "\r\n") && value == strings.TrimSpace(value)
}

// validUTF8: JSON is UTF-8.
func validUTF8(key, value string) bool { return utf8.ValidString(key) && utf8.ValidString(value) }
