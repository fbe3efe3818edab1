package door

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// address returns where the app connects to, without a password.
func (c *core) address() amqp091.URI {
	uri, _ := amqp091.ParseURI(c.app.URI)                       // validated
	if own := c.app.Connection; own != nil && own.Vhost != "" { // amqp091-go prefers it, too
		uri.Vhost = own.Vhost
	}
	return uri
}

// broker describes the broker and the prefix, for errors.
func (c *core) broker() string {
	uri := c.address()
	address := url.URL{Scheme: uri.Scheme, Host: net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)), Path: "/"}
	if uri.Vhost != "/" {
		address.Path, address.RawPath = "/"+uri.Vhost, "/"+url.PathEscape(uri.Vhost)
	}
	return fmt.Sprintf("%s (prefix %s)", address.String(), c.prefix)
}
