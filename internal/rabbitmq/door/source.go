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
	uri, _ := amqp091.ParseURI(c.app.URI) // validated
	if vhost := c.connection().Vhost; vhost != "" {
		uri.Vhost = vhost
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
