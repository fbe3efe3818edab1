// Package registry lists the backends. The conformance suite, the tests of the servers, the example and the demos of
// the Makefile read this list, and name no backend themselves.
package registry

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/servers"
)

// Entry is a backend, with what the tests and demos need to use it.
type Entry struct {
	// Name is the backend's name in the tests and their report.
	Name string

	// Open returns the backend on the server at an address.
	Open func(address string, logger watermill.LoggerAdapter) backends.Backend

	// Start starts a private server. It is nil where AddressVariable is set, and where the backend has no server.
	Start func(context.Context) (*servers.Server, error)

	// AddressVariable is the environment variable that has the address of a running server.
	AddressVariable string

	// Clean, where it is set, removes what an app made on a server that other apps may use.
	Clean func(address string, app backends.App, topics []string) error

	// Demo is the backend in the example. The zero value: the example does not offer it.
	Demo Demo

	Expect Expectation
}

// Demo is a backend of the example. The Makefile reads Name and Title from the source of this package: keep each Demo
// on one line.
type Demo struct {
	Name  string // of the flag -backend and of the command `make demo-NAME`
	Title string
}

// Expectation is what the conformance suite expects of a backend.
type Expectation struct {
	// InMemory: the backend keeps nothing over a restart.
	InMemory bool

	// HandlersPerTopic bounds how many handlers have a topic in common. 0: no bound. On gochannel each subscription
	// gets every message. With watermill-sql on PostgreSQL a consumer group handles one message of a topic at a time.
	HandlersPerTopic int

	// Letters is what the backend can do with its dead letters.
	Letters LetterAbility

	// Relayed: a relay delays the messages. False: the server delays them.
	Relayed bool

	// Concurrency: a handler can have several messages in flight. Else the backend refuses it.
	Concurrency bool

	// Lateness is the upper bound of the 99th percentile, while nothing else runs, on two cores. It is generous.
	Lateness time.Duration

	// Clock is the clock that the backend's tiers wait by.
	Clock Clock

	// Keeps reports whether the publisher for the app's topics keeps a metadata entry as it is. The retries keep
	// every entry that the handler got.
	Keeps func(key, value string) bool
}

// LetterAbility is what a backend can do with its dead letters.
type LetterAbility string

// The abilities. What a backend cannot do, it refuses with backends.ErrNoLetters.
const (
	NoLetters     LetterAbility = ""
	BrowseLetters LetterAbility = "browse"
	AllLetters    LetterAbility = "browse, redrive, discard"
)

var entries = []Entry{
	{
		Name: "gochannel",
		Open: func(_ string, logger watermill.LoggerAdapter) backends.Backend { return backends.Memory(logger) },
		Expect: Expectation{InMemory: true, HandlersPerTopic: 1, Lateness: time.Second, Clock: relayClock,
			Keeps: everything, Relayed: true},
	},
	{
		Name: "rabbitmq-v2", Open: backends.RabbitMQ, AddressVariable: "AMQP_URL", Clean: cleanRabbitMQ,
		Expect: Expectation{Letters: AllLetters, Concurrency: true, Lateness: time.Second, Clock: erlangClock,
			Keeps: shortKeys},
	},
	{
		Name: "rabbitmq-v3", Open: backends.RabbitMQv3, AddressVariable: "AMQP_URL", Clean: cleanRabbitMQ,
		Expect: Expectation{Letters: AllLetters, Concurrency: true, Lateness: time.Second, Clock: erlangClock,
			Keeps: shortKeys},
	},
	{
		Name: "nats", Open: backends.NATS, Start: servers.NATS,
		Demo: Demo{Name: "nats", Title: "NATS JetStream"},
		Expect: Expectation{Letters: AllLetters, Lateness: time.Second, Clock: relayClock, Keeps: httpHeaders,
			Relayed: true},
	},
	{
		Name: "redis", Open: backends.Redis, Start: servers.Redis,
		Demo: Demo{Name: "redis", Title: "Redis Streams"},
		Expect: Expectation{Letters: AllLetters, Lateness: time.Second, Clock: relayClock, Keeps: everything,
			Relayed: true},
	},
	{
		Name: "postgres", Open: backends.Postgres, Start: servers.PostgreSQL,
		Demo: Demo{Name: "postgres", Title: "PostgreSQL"},
		Expect: Expectation{Letters: AllLetters, HandlersPerTopic: 2, Lateness: 2 * time.Second, Clock: postgresClock,
			Keeps: validUTF8},
	},
	{
		Name: "kafka", Open: backends.Kafka, Start: servers.Kafka,
		Expect: Expectation{Letters: BrowseLetters, Lateness: time.Second, Clock: relayClock, Keeps: everything,
			Relayed: true},
	},
}

// All returns every backend.
func All() []Entry { return slices.Clone(entries) }

// Demos returns the backends that the example offers.
func Demos() []Entry {
	return slices.DeleteFunc(All(), func(e Entry) bool { return e.Demo.Name == "" })
}

// Find returns the backend with this name.
func Find(name string) (Entry, error) {
	var names []string
	for _, e := range entries {
		if e.Name == name {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Entry{}, fmt.Errorf("there is no backend %q: it must be one of %s", name, strings.Join(names, ", "))
}

// Server starts a private server, or returns the running one. Stop it after use; that has no effect on a server that
// ran before.
func (e Entry) Server(ctx context.Context) (*servers.Server, error) {
	if e.Start != nil {
		return e.Start(ctx)
	}
	server := &servers.Server{Stop: func() {}}
	if e.AddressVariable == "" {
		return server, nil
	}
	if server.URL = os.Getenv(e.AddressVariable); server.URL == "" {
		return nil, fmt.Errorf("%s is not set: run `make test-backends`, or set it to the address of a server",
			e.AddressVariable)
	}
	return server, nil
}
