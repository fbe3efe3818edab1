package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

// Client returns a client of the management API of the broker at an address. An empty endpoint is that at the AMQP
// port plus 10,000.
func Client(uri, endpoint string) (*rabbithole.Client, error) {
	parsed, err := url.Parse(uri)
	if err != nil || parsed.Host == "" {
		return nil, errors.New("the broker's URL is invalid") // the error of url.Parse contains its password
	}
	if endpoint == "" {
		port := 5672
		if parsed.Port() != "" {
			if port, err = strconv.Atoi(parsed.Port()); err != nil {
				return nil, err
			}
		}
		endpoint = "http://" + net.JoinHostPort(parsed.Hostname(), strconv.Itoa(port+10_000))
	}
	password, _ := parsed.User.Password()
	client, err := rabbithole.NewClient(endpoint, parsed.User.Username(), password)
	if err != nil {
		return nil, err
	}
	client.SetTransport(transport{&http.Transport{DisableKeepAlives: true}})
	return client, nil
}

// transport asks again where RabbitMQ answers 500: it does where a queue is deleted while it lists them.
type transport struct{ http.RoundTripper }

// mostFailures is how often the API may fail in a row.
const mostFailures = 20

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	for failures := 1; ; failures++ {
		answer, err := t.RoundTripper.RoundTrip(request)
		if err != nil || request.Method != http.MethodGet || answer.StatusCode != http.StatusInternalServerError ||
			failures == mostFailures {
			return answer, err
		}
		_ = answer.Body.Close()
		time.Sleep(100 * time.Millisecond)
	}
}

// Remove deletes the queues and exchanges with such names.
func Remove(client *rabbithole.Client, ours func(name string) bool) error {
	queues, err := client.ListQueuesWithParameters(url.Values{"columns": {"vhost,name"}})
	for _, queue := range queues {
		if ours(queue.Name) {
			ended(client.DeleteQueue(queue.Vhost, queue.Name))
		}
	}
	if err != nil {
		return err
	}
	exchanges, err := client.ListExchanges()
	for _, exchange := range exchanges {
		if ours(exchange.Name) {
			ended(client.DeleteExchange(exchange.Vhost, exchange.Name))
		}
	}
	return err
}

// ended closes an answer: that of an object that is gone has a body, whose connection stays open otherwise.
func ended(answer *http.Response, err error) {
	if err == nil {
		_ = answer.Body.Close()
	}
}

// Host makes a virtual host with a new name that begins with this one, and returns its address.
func Host(client *rabbithole.Client, uri, name string) (host string, remove func() error, err error) {
	parsed, err := url.Parse(uri)
	if err != nil {
		return "", nil, err
	}
	name = fmt.Sprintf("%s-%06x", name, rand.N(1<<24))
	if _, err := client.PutVhost(name, rabbithole.VhostSettings{}); err != nil {
		return "", nil, err
	}
	remove = func() error {
		_, err := client.DeleteVhost(name)
		return err
	}
	everything := rabbithole.Permissions{Configure: ".*", Write: ".*", Read: ".*"}
	if _, err := client.UpdatePermissionsIn(name, client.Username, everything); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	parsed.Path = "/" + name
	return parsed.String(), remove, nil
}
