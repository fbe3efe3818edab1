// Package backend opens the letters of the backend that an address names.
package backend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/tieredretry/watermill-retry/internal/each"
)

// Kind is a backend.
type Kind struct {
	Name    string
	Example string // an address
	// Groups: letters belong to a consumer group and its topic. False: to a queue.
	Groups bool
	// Keeps: no letter can be removed, so none is redriven.
	Keeps bool

	schemes []string
	port    string // the usual one
	asks    bool   // a user has a password
	open    func(context.Context, Config) (*Store, error)
}

// RabbitMQ is the backend where no address is known.
var RabbitMQ = &Kind{Name: "RabbitMQ", Example: "amqp://user@host:5672/", schemes: []string{"amqp", "amqps"},
	port: "5672, or 5671 with TLS", asks: true, open: openRabbitMQ}

var kinds = []*Kind{
	RabbitMQ,
	{Name: "Redis", Example: "redis://default@host:6379", Groups: true, schemes: []string{"redis", "rediss"}, port: "6379",
		asks: true, open: openRedis},
	{Name: "NATS", Example: "nats://user@host:4222", Groups: true, schemes: []string{"nats"}, port: "4222", asks: true,
		open: openNATS},
	{Name: "PostgreSQL", Example: "postgres://user@host/database", Groups: true,
		schemes: []string{"postgres", "postgresql"}, port: "5432", open: openPostgreSQL},
	{Name: "Kafka", Example: "kafka://host:9092,host:9092", Groups: true, Keeps: true, schemes: []string{"kafka"},
		port: "9092", asks: true, open: openKafka},
}

// Examples are addresses of all backends.
func Examples() string {
	all := each.Of(kinds, func(k *Kind) string { return k.Example })
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// KindOf returns the backend of an address, or nil.
func KindOf(address string) *Kind {
	scheme, _, _ := strings.Cut(address, "://")
	at := slices.IndexFunc(kinds, func(k *Kind) bool { return slices.Contains(k.schemes, scheme) })
	if at < 0 {
		return nil
	}
	return kinds[at]
}

// Address is where a backend is.
type Address struct {
	Kind *Kind
	url  *url.URL // its host has all hosts
}

// Parse reads an address. Its errors contain nothing of it: it may have a password.
func Parse(text string) (Address, error) {
	kind := KindOf(text)
	if kind == nil {
		return Address{}, fmt.Errorf("is not an address of a backend: it must be like %s", Examples())
	}
	_, rest, _ := strings.Cut(text, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 && strings.Contains(rest[end:], "@") {
		// net/url would take the rest of the password for a path, a parameter or a fragment, and clients print these
		return Address{}, fmt.Errorf("has an @ after its host: the reserved characters / ? # @ of a user, a password, a "+
			"database and a parameter must be percent-encoded (an @ is %%40), as in %s", kind.Example)
	}
	hosts := strings.LastIndexByte(text, '@') + 1
	first, more, several := strings.Cut(text[hosts:], ",") // net/url refuses a host with several ports
	rest = ""
	if several {
		if end := strings.IndexAny(more, "/?"); end >= 0 {
			more, rest = more[:end], more[end:]
		}
	}
	u, err := url.Parse(text[:hosts] + first + rest)
	if err != nil || u.Host == "" {
		return Address{}, fmt.Errorf("is not an address of %s: it must be like %s, with reserved characters "+
			"percent-encoded", kind.Name, kind.Example)
	}
	if u.Query().Has("password") || u.Query().Has("sslpassword") {
		return Address{}, errors.New("has a password in its parameters: put it before the host, or into --password-file")
	}
	if several {
		u.Host += "," + more
	}
	return Address{kind, u}, nil
}

// User returns the user of the address, and its password.
func (a Address) User() (name, password string, hasPassword bool) {
	password, hasPassword = a.url.User.Password()
	return a.url.User.Username(), password, hasPassword
}

// NeedsPassword reports whether the address names a user whose password is missing.
func (a Address) NeedsPassword() bool {
	name, _, has := a.User()
	return a.Kind.asks && name != "" && !has
}

// With returns the address with a password.
func (a Address) With(password string) Address {
	u := *a.url
	u.User = url.UserPassword(a.url.User.Username(), password)
	a.url = &u
	return a
}

// Name is the backend, its hosts, and its virtual host or database, without a slash.
func (a Address) Name() string {
	return strings.TrimRight(strings.ReplaceAll(a.Kind.Name+"-"+a.url.Host+a.url.Path, "/", "-"), "-")
}

// Where is the address without user, password and parameters.
func (a Address) Where() string {
	return (&url.URL{Scheme: a.url.Scheme, Host: a.url.Host, Path: a.url.Path, RawPath: a.url.RawPath}).String()
}

// Place is the hosts of the address.
func (a Address) Place() string { return a.url.Host }

// hosts are those of the address, each with its port.
func (a Address) hosts() []string {
	all := strings.Split(a.url.Host, ",")
	for i, host := range all {
		if _, _, err := net.SplitHostPort(host); err != nil {
			all[i] = net.JoinHostPort(strings.Trim(host, "[]"), a.Kind.port)
		}
	}
	return all
}

// String returns the address with its password.
func (a Address) String() string { return a.url.String() }
