package wire

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// ParseURI returns errors without the address and without the parser's text: both can contain a part of the password.
func ParseURI(address string) (amqp091.URI, error) {
	if address == "" {
		return amqp091.URI{}, errors.New("URI: is empty, must be amqp://user:password@host:port/vhost or amqps://...")
	}
	const hint = "reserved characters in user name and password have to be percent-encoded"
	parsed, err := url.Parse(address)
	if err != nil {
		return amqp091.URI{}, errors.New("URI: cannot be parsed (it is not shown, because it may contain a " +
			"password); " + hint)
	}
	if parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return amqp091.URI{}, errors.New("URI: the scheme must be amqp or amqps")
	}
	// An unescaped / ? or # in the password ends the host part too early: a part of the password would be dialled and
	// logged as the host.
	if parsed.Fragment != "" || parsed.User == nil && strings.Contains(address, "@") || strings.Contains(tail(address),
		"@") {
		return amqp091.URI{}, errors.New("URI: user name and password cannot be separated from the host; " + hint)
	}
	uri, err := amqp091.ParseURI(address)
	if err != nil {
		return amqp091.URI{}, errors.New("URI: contains white space, or a port or parameter that is not a number " +
			"within its bounds; " + hint)
	}
	return uri, nil
}

// RedactedURI returns an address without its password.
func RedactedURI(address string) string {
	if address == "" {
		return ""
	}
	parsed, err := url.Parse(address)
	if _, wrong := ParseURI(address); err != nil || wrong != nil {
		return "(an address that cannot be read)"
	}
	return parsed.Redacted()
}

// tail returns the part of the address after the host. It begins too early when the password has an unescaped / ? or #.
func tail(address string) string {
	_, rest, _ := strings.Cut(address, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		return rest[end:]
	}
	return ""
}

// Place describes the address of a valid configuration, without user and password.
func (c Config) Place() string {
	uri, _ := ParseURI(c.URI)
	return place(uri)
}

func place(uri amqp091.URI) string {
	return fmt.Sprintf("%s (virtual host %q)", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), uri.Vhost)
}
