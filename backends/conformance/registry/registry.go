// Package registry lists the backends. The conformance suite, the tests of the servers, the example and the demos of
// the Makefile read this list, and name no backend themselves.
package registry

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backends/conformance/servers"
)

// Entry is a backend, with what the tests and demos need to use it.
type Entry struct {
	// Name is the backend's name in package pubsub, in the tests and in their report.
	Name string

	// Start starts a private server. It is nil where AddressVariable is required.
	Start func(context.Context) (*servers.Server, error)

	// AddressVariable is the environment variable that has the address of a running server, which is used then.
	AddressVariable string

	// Demo is the backend in the example. The zero value: the example does not offer it.
	Demo Demo

	Expect Expectation
}

// Demo is a backend of the example. The Makefile reads Name and Title from the source of this package: keep each Demo
// on one line.
type Demo struct {
	Name  string // the name of the flag -backend and of the command `make demo-NAME`
	Title string
}

// Expectation is what the conformance suite expects of a backend.
type Expectation struct {
	// Letters is what the backend can do with its dead letters.
	Letters LetterAbility

	// Relayed: a relay delays the messages, in topics. False: the server delays them.
	Relayed bool

	// Tiers: only the delays of the schedule are exact, because each is a queue of the server. Others are composed.
	Tiers bool

	// Clock is the clock that the backend's tiers wait by.
	Clock Clock

	// Keeps reports whether the publisher for the app's topics keeps a metadata entry as it is. The retries keep
	// every entry that the handler got.
	Keeps func(key, value string) bool

	// LongestTopic is how many bytes the name of an app's topic may have. 0: 200.
	LongestTopic int
}

// Leases reports whether the server leases a message to a process, and delivers it to another one after that.
func (e Expectation) Leases() bool { return !e.Relayed && !e.Tiers }

// LetterAbility is what a backend can do with its dead letters.
type LetterAbility string

// The abilities. What a backend cannot do, it refuses with an error.
const (
	BrowseLetters LetterAbility = "browse"
	AllLetters    LetterAbility = "browse, redrive, discard"
)

var entries = []Entry{
	{
		Name: "rabbitmq", AddressVariable: "AMQP_URL",
		Expect: Expectation{Letters: AllLetters, Tiers: true,
			Clock: erlangClock, Keeps: shortKeys, LongestTopic: 64},
	},
	{
		Name: "nats", Start: servers.NATS,
		Demo: Demo{Name: "nats", Title: "NATS JetStream"},
		Expect: Expectation{Letters: AllLetters,
			Clock: wallClock, Keeps: httpHeaders},
	},
	{
		Name: "redis", Start: servers.Redis,
		Demo: Demo{Name: "redis", Title: "Redis Streams"},
		Expect: Expectation{Letters: AllLetters,
			Clock: wallClock, Keeps: everything},
	},
	{
		Name: "postgres", Start: servers.PostgreSQL,
		Demo: Demo{Name: "postgres", Title: "PostgreSQL"},
		Expect: Expectation{Letters: AllLetters,
			Clock: wallClock, Keeps: validUTF8, LongestTopic: 45},
	},
	{
		Name: "kafka", Start: servers.Kafka, AddressVariable: "KAFKA_BROKERS",
		Demo: Demo{Name: "kafka", Title: "Kafka"},
		Expect: Expectation{Letters: BrowseLetters,
			Clock: wallClock, Keeps: everything, Relayed: true},
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

// Open returns the backend on the server at an address.
func (e Entry) Open(address string, logger watermill.LoggerAdapter) pubsub.Backend {
	backend, err := pubsub.Open(e.Name, address, logger)
	if err != nil {
		panic(err) // a test has compared the lists
	}
	return backend
}

// Server starts a private server, or returns the running one. Stop it after use; that has no effect on a server that
// ran before.
func (e Entry) Server(ctx context.Context) (*servers.Server, error) {
	server := &servers.Server{Stop: func() {}}
	if e.AddressVariable != "" {
		server.URL = os.Getenv(e.AddressVariable)
	}
	switch {
	case server.URL == "" && e.Start != nil:
		return e.Start(ctx)
	case server.URL == "":
		return nil, fmt.Errorf("%s is not set: run `make test-backends`, or set it to the address of a server",
			e.AddressVariable)
	}
	return server, nil
}
