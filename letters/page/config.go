package page

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	defaultMaxLetters = 10_000
	defaultTimeout    = 20 * time.Second
)

// Config configures New. Store is required.
type Config struct {
	// Store has the letters. The page does not close it.
	Store letters.Store

	// Status returns the queues and their depths. It is called at most once a second, whatever the number of browsers.
	// The default asks a Store of this library: what RabbitMQ and the backends show. Without any, the board has no
	// depths, and only links to Queues.
	Status func(context.Context) (letters.Status, error)

	// Queues are further queues or topics that have letters, such as that of Watermill's PoisonQueue. The page looks
	// only at these, and at the dead letters and orphans of Status: no request can make it take messages of another
	// queue.
	Queues []string

	// AllowWrite permits redrive and discard. The default is a page that only shows: other requests get status 403.
	AllowWrite bool

	// By returns who redrives, for the history of each letter. The default is user@host of this process.
	By func(*http.Request) string

	// Hosts are the names, without a port, that the Host header of a request may have: others get status 403. IP
	// addresses may always be there. A page without a login of its own needs it, because a foreign page can give its
	// own name the address of this one (DNS rebinding): see LoopbackHosts. The default is no limit.
	Hosts []string

	// Redact are the values to replace in a letter that is downloaded as a test: see letters.GoTestConfig. The page
	// itself shows all values. The default is none.
	Redact []string

	// MaxLetters is how many letters of a queue one view looks at, from the oldest. The page shows when there are
	// more. A redrive or discard has no such limit. The default is 10,000.
	MaxLetters int

	// Timeout is how long one view looks at letters, and how long the count before a redrive or discard goes on. The
	// default is 20 s.
	Timeout time.Duration

	// Logger logs each redrive and discard. The default is none.
	Logger watermill.LoggerAdapter
}

// LoopbackHosts are the Hosts of a page that listens on a loopback address.
func LoopbackHosts() []string { return []string{"localhost", "127.0.0.1", "::1"} }

// Validate reports all faults of the configuration.
func (c Config) Validate() error {
	all := []error{
		faults.If(c.Store == nil, "Store is nil: set it to what has the letters, such as a *deadletter.Store of RabbitMQ"),
		letters.GoTestConfig{Name: "x", Redact: c.Redact}.Validate(),
		faults.If(c.MaxLetters < 0, "MaxLetters is %d: it must not be negative (0 is %d)", c.MaxLetters, defaultMaxLetters),
		faults.If(c.Timeout < 0, "Timeout is %v: it must not be negative (0 is %v)", c.Timeout, defaultTimeout),
	}
	for i, queue := range c.Queues {
		all = append(all, faults.If(queue == "", "Queues[%d] is empty: name a queue that has letters", i))
	}
	for i, host := range c.Hosts {
		wrong := net.ParseIP(host) == nil && (host == "" || hostname(host) != strings.ToLower(host))
		all = append(all, faults.If(wrong, "Hosts[%d] is %q: it must be a name or an address, without a port", i, host))
	}
	return faults.Of("page config", errors.Join(all...))
}

func (c Config) withDefaults() Config {
	c.MaxLetters = cmp.Or(c.MaxLetters, defaultMaxLetters)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	if c.Status == nil {
		c.Status = statusOf(c.Store)
	}
	c.Logger = cmp.Or[watermill.LoggerAdapter](c.Logger, watermill.NopLogger{})
	if c.By == nil {
		c.By = func(*http.Request) string { return "" }
	}
	return c
}

// statusOf returns the Status of a Store.
func statusOf(store letters.Store) func(context.Context) (letters.Status, error) {
	if of, has := store.(interface {
		Status(ctx context.Context, works ...string) (letters.Status, error)
	}); has {
		return func(ctx context.Context) (letters.Status, error) { return of.Status(ctx) }
	}
	of := operate.Of(store)
	return func(ctx context.Context) (status letters.Status, err error) {
		if of == nil {
			return status, nil
		}
		status.At = time.Now()
		waiting, err := of.Waiting(ctx)
		for _, w := range waiting {
			work := letters.WorkQueue{
				Name: w.Name, Depth: letters.Depth{Queue: w.Name, Ready: -1, Unacked: w.InFlight, Consumers: -1},
				Tiers: []letters.Tier{{Depth: letters.Depth{Messages: w.Retries}, NextDue: w.NextDue, Overdue: w.Overdue}},
				Dead:  letters.Depth{Queue: w.Topic, Messages: w.Dead}, OldestDead: w.OldestDead,
			}
			if w.Consumers != nil {
				work.Consumers = *w.Consumers
			}
			status.Queues = append(status.Queues, work)
		}
		return status, err
	}
}

// answersTo reports whether a request may have a host name. No foreign page has an IP address of this host as its name.
func (c Config) answersTo(name string) bool {
	return len(c.Hosts) == 0 || net.ParseIP(name) != nil ||
		slices.ContainsFunc(c.Hosts, func(host string) bool { return strings.ToLower(host) == name })
}

// hostname returns the host of a Host header, in lower case, without the port and the brackets of an IPv6 address.
func hostname(host string) string { return strings.ToLower((&url.URL{Host: host}).Hostname()) }
