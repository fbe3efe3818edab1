// Package management reads from RabbitMQ's management API what AMQP 0-9-1 has no method for: the queues, exchanges and
// bindings of a virtual host, their arguments and policies, and how many expired messages of a queue wait for the
// queues that they go to.
package management

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// maxAnswer bounds the answer in bytes. A queue has about 120, and 600 with its details.
const maxAnswer = 64 << 20

// longest bounds a request where its context does not: an address can be that of something else.
const longest = time.Minute

// Client reads from the management API of one virtual host. It keeps no connection open. It is safe for concurrent use.
type Client struct {
	address        string // without user and password, up to /api
	vhost          string // escaped
	user, password string
	http           http.Client
}

// Validate reports what is wrong with an address. The error contains no part of it: it may have a password.
func Validate(address string) error {
	_, err := parse(address)
	return err
}

func parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, errors.New("the address must be like http://host:15672 or http://user:password@host:15672 (or " +
			"https://), " +
			"with reserved characters in user name and password percent-encoded")
	}
	return u, nil
}

// Redacted returns an address without its password.
func Redacted(address string) string {
	if address == "" {
		return ""
	}
	u, err := parse(address)
	if err != nil {
		return "(an address that cannot be read)"
	}
	return u.Redacted()
}

// Broker is the broker that an address of the management API belongs to.
type Broker struct {
	Vhost          string
	User, Password string      // for an address that lacks them
	TLS            *tls.Config // for an https address; may be nil
}

// New returns a client for a virtual host. It does not connect.
func New(address string, broker Broker) (*Client, error) {
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	c := &Client{user: broker.User, password: broker.Password, vhost: url.PathEscape(broker.Vhost)}
	if name := u.User.Username(); name != "" {
		password, has := u.User.Password()
		if has || name != broker.User {
			c.password = password
		}
		c.user = name
	}
	u.User = nil
	c.address = strings.TrimSuffix(u.String(), "/") + "/api"
	c.http = http.Client{
		Timeout: longest,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: broker.TLS,
			DisableKeepAlives: true},
		// the password is for this host
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// list reads some columns of all objects of a kind in the virtual host.
func (c *Client) list(ctx context.Context, kind, columns string, into any) error {
	return c.get(ctx, kind+"/"+c.vhost, columns, into)
}

func (c *Client) get(ctx context.Context, what, columns string, into any) error {
	_, err := c.fetch(ctx, what, columns, into)
	return err
}

// RabbitMQ answers 500 where a queue is deleted while it lists them.
const (
	mostTries  = 4
	retryPause = 200 * time.Millisecond
)

// fetch is get, and returns the header of the answer.
func (c *Client) fetch(ctx context.Context, what, columns string, into any) (header http.Header, err error) {
	for try := 1; ; try++ {
		var failed bool
		if header, failed, err = c.once(ctx, what, columns, into); !failed || try == mostTries ||
			pauses.Sleep(ctx, retryPause) != nil {
			return header, err
		}
	}
}

// once asks, and reports whether the server has failed by itself.
func (c *Client) once(ctx context.Context, what, columns string, into any) (_ http.Header, failed bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address+"/"+what+"?columns="+columns, nil)
	if err != nil {
		return nil, false, errors.New("cannot make a request to the management API")
	}
	request.SetBasicAuth(c.user, c.password)
	response, err := c.http.Do(request)
	if err != nil {
		return nil, false, fmt.Errorf("the management API at %s does not answer: %w", request.URL.Host, cause(err))
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, response.StatusCode == http.StatusInternalServerError, c.refusal(request.URL.Host, what, response)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into); err != nil {
		return nil, false, fmt.Errorf("the answer of the management API at %s cannot be read: %w", request.URL.Host,
			cause(err))
	}
	return response.Header, false, nil
}

// maxReason bounds the answer of a refusal in bytes.
const maxReason = 4096

// refusal explains why the API refuses a request, and what to do. RabbitMQ answers 401 to a wrong password, to a user
// without a tag, and up to 4.2 to a user without permissions: only the text of the answer differs.
func (c *Client) refusal(host, what string, response *http.Response) error {
	var answer struct {
		Reason string `json:"reason"`
	}
	// it may be the answer of something else
	_ = json.NewDecoder(io.LimitReader(response.Body, maxReason)).Decode(&answer)
	vhost, _ := url.PathUnescape(c.vhost)
	advice := "is this the address of RabbitMQ's management API?"
	switch status := response.StatusCode; {
	case strings.Contains(answer.Reason, "virtual host"), status == http.StatusNotFound &&
		strings.Count(what, "/") == 1:
		advice = fmt.Sprintf("the user %q needs permissions for the virtual host %q, or this virtual host does not "+
			"exist", c.user, vhost)
	case answer.Reason == "Not management user", status == http.StatusForbidden:
		advice = fmt.Sprintf("the password is accepted, but the user %q needs the tag \"management\" or \"monitoring\"",
			c.user)
	case status == http.StatusUnauthorized:
		advice = fmt.Sprintf("the password of the user %q is wrong, or this user does not exist: correct them in the "+
			"address", c.user)
	case status == http.StatusNotFound:
		advice = "the queue does not exist"
	case status == http.StatusInternalServerError:
		advice = "the broker has failed: try again, and look at its log"
	}
	return fmt.Errorf("the management API at %s refuses to list the %s: %s: %s", host, strings.Split(what, "/")[0],
		statusText(response), advice)
}

// statusText is the status of a response, with a standard text: that of the server can have any length.
func statusText(response *http.Response) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", response.StatusCode, http.StatusText(response.StatusCode)))
}

// cause leaves out the address, which an error of a client repeats.
func cause(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	var network net.Error
	if errors.As(err, &network) && network.Timeout() {
		return errors.New("it took too long")
	}
	return err
}
